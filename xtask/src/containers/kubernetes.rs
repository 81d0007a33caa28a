//! The pods of an indexed job of Kubernetes, with the keys that the guide's page uses.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_yaml_ng::{Deserializer, Value};

use super::compose::Service;

/// The variable in which a pod of an indexed job finds its number.
const INDEX: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Job {
    completions: usize,
    parallelism: usize,
    completion_mode: String,
    template: Template,
}

#[derive(Deserialize)]
struct Template {
    spec: Pod,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Pod {
    subdomain: String,
    restart_policy: String,
    containers: Vec<Container>,
    volumes: Vec<Volume>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Container {
    name: String,
    image: String,
    command: Vec<String>,
    env: Vec<Variable>,
    volume_mounts: Vec<Mount>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Variable {
    name: String,
    value: Option<String>,
    value_from: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Mount {
    name: String,
    mount_path: String,
}

#[derive(Deserialize)]
struct Volume {
    name: String,
    secret: Value,
}

/// The pods of a headless service and an indexed job, by the names under which they find each
/// other.
pub(super) fn pods(text: &str) -> Result<Vec<Service>, String> {
    let documents: Result<Vec<Value>, _> = Deserializer::from_str(text).map(Value::deserialize).collect();
    let documents = documents.map_err(|error| error.to_string())?;
    let [service, job] = &documents[..] else { return Err("there are not a Service and a Job".to_owned()) };
    let name = job["metadata"]["name"].as_str().ok_or("the job has no name")?;
    let spec: Job = serde_yaml_ng::from_value(job["spec"].clone()).map_err(|error| error.to_string())?;
    let pod = spec.template.spec;
    let holds = |what: bool, fault: &str| if what { Ok(()) } else { Err(fault.to_owned()) };
    holds(
        service["metadata"]["name"] == pod.subdomain.as_str(),
        "the service does not have the name of the subdomain",
    )?;
    holds(service["spec"]["clusterIP"] == "None", "the service is not headless")?;
    holds(service["spec"]["publishNotReadyAddresses"] == true, "ranks are not found before they are ready")?;
    holds(service["spec"]["selector"]["job-name"] == name, "the service selects other pods")?;
    holds(job["kind"] == "Job" && spec.completion_mode == "Indexed", "the job is not indexed")?;
    holds(spec.completions == spec.parallelism, "the pods do not run at the same time")?;
    holds(pod.restart_policy == "Never", "a rank that starts again meets nobody")?;
    let [container] = &pod.containers[..] else { return Err("a pod has several containers".to_owned()) };
    holds(container.image == "soft-rdma", "the image is another one")?;
    let [mount] = &container.volume_mounts[..] else { return Err(format!("{}: no key", container.name)) };
    let volume = pod.volumes.iter().find(|volume| volume.name == mount.name);
    holds(volume.is_some_and(|volume| volume.secret["defaultMode"] == "0400"), "others may read the secret")?;
    (0..spec.completions)
        .map(|index| {
            let value = |variable: &Variable| match (&variable.value, &variable.value_from) {
                (Some(value), None) => Ok((variable.name.clone(), value.clone())),
                (None, Some(from)) if from["fieldRef"]["fieldPath"] == INDEX => {
                    Ok((variable.name.clone(), index.to_string()))
                }
                _ => Err(format!("{} has no value", variable.name)),
            };
            let environment: BTreeMap<_, _> = container.env.iter().map(value).collect::<Result<_, _>>()?;
            let is_mounted = environment.get("RDMA_SOFT_KEY").is_some_and(|key| key.starts_with(&mount.mount_path));
            holds(is_mounted, "the key is not in the secret")?;
            let name = format!("{name}-{index}.{}", pod.subdomain);
            Ok(Service::new(name, container.command.clone(), environment))
        })
        .collect()
}
