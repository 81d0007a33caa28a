use super::*;
use crate::ErrorKind;

fn read(set: &[(&str, &str)], proxy: Option<&str>) -> Result<Option<JobPlace>, Error> {
    let variable = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    job_place_by(&Variables(&variable), || proxy.map(str::to_owned))
}

fn found(set: &[(&str, &str)]) -> Option<JobPlace> {
    read(set, None).unwrap()
}

fn place(set: &[(&str, &str)]) -> (usize, usize, Option<String>) {
    let JobPlace { rank, ranks: world, meeting, .. } = found(set).unwrap();
    (rank, world, meeting.map(|Meeting { host, port }| format!("{host}:{port}")))
}

#[test]
fn half_an_environment_is_none_where_it_may_be_of_something_else() {
    assert_eq!(found(&[]), None);
    assert_eq!(found(&[("SLURM_PROCID", "3")]), None);
    assert_eq!(found(&[("SLURM_NTASKS", "3"), ("SLURM_NNODES", "x")]), None);
    assert_eq!(found(&[("RANK", "captain")]), None);
    assert_eq!(found(&[("RANK", "captain"), ("WORLD_SIZE", " ")]), None);
    assert_eq!(found(&[("MASTER_ADDR", "node7"), ("MASTER_PORT", "99")]), None);
    assert_eq!(found(&[("MASTER_PORT", "nonsense")]), None);
}

#[test]
fn what_makes_no_sense_is_said() {
    let torch = [("RANK", "1"), ("WORLD_SIZE", "2")];
    let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];
    let mpirun = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")];
    let agent = ("TORCHELASTIC_USE_AGENT_STORE", "True");
    type Set<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&[Set<'_>], &str); 21] = [
        (&[&[("RANK", "one"), torch[1]]], "RANK is \"one\""),
        (&[&[("RANK", "-1"), torch[1]]], "RANK is \"-1\""),
        (&[&[torch[0], ("WORLD_SIZE", "2x")]], "WORLD_SIZE is \"2x\""),
        (&[&[torch[0], ("WORLD_SIZE", "99999999999999999999")]], "WORLD_SIZE is"),
        (&[&torch, &[("LOCAL_WORLD_SIZE", "all")]], "LOCAL_WORLD_SIZE is \"all\""),
        (&[&torch, &[("LOCAL_WORLD_SIZE", "3")]], "only 2 ranks by WORLD_SIZE"),
        (&[&torch, &[("MASTER_PORT", "http")]], "MASTER_PORT is \"http\""),
        (&[&torch, &[("MASTER_PORT", "0")]], "from 1 to 65535"),
        (&[&torch, &[("MASTER_PORT", "65536")]], "from 1 to 65535"),
        (&[&torch, &[("MASTER_PORT", "65535"), agent]], "there is none"),
        (&[&torch, &[("MASTER_ADDR", "node7:99")]], "for MASTER_PORT"),
        (&[&torch, &[("MASTER_ADDR", "[::1]:99")]], "for MASTER_PORT"),
        (&[&[torch[0], ("MASTER_ADDR", "node7")]], "RANK is set in the environment and WORLD_SIZE is not"),
        (&[&[torch[1], ("LOCAL_RANK", "0")]], "WORLD_SIZE is set in the environment and RANK is not"),
        (&[&hydra[..1]], "PMI_SIZE is not, and mpiexec sets both"),
        (&[&hydra, &[("MPI_LOCALNRANKS", "?")]], "MPI_LOCALNRANKS is \"?\""),
        (&[&mpirun[1..]], "OMPI_COMM_WORLD_RANK is not, and mpirun sets both"),
        (&[&mpirun, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1.5")]], "OMPI_COMM_WORLD_LOCAL_SIZE is \"1.5\""),
        (&[&slurm, &[("SLURM_NNODES", "1-2")]], "SLURM_NNODES is \"1-2\""),
        (&[&slurm, &[("SLURM_STEP_NUM_TASKS", "two")]], "SLURM_STEP_NUM_TASKS is \"two\""),
        (&[&slurm, &[("SLURM_NNODES", "1"), ("MASTER_PORT", "x")]], "MASTER_PORT is \"x\""),
    ];
    for (parts, said) in cases {
        let failure = read(&parts.concat(), None).expect_err(said);
        assert!(failure.to_string().contains(said), "{said:?} is not in {failure}");
        assert_eq!(failure.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn what_is_empty_is_not_set() {
    let torch = [("RANK", "1"), ("WORLD_SIZE", " 2 "), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_PORT", "")];
    assert_eq!(place(&torch), (1, 2, Some("127.0.0.1:18515".to_owned())));
    assert_eq!(place(&[&torch[..2], &[("MASTER_ADDR", "::1"), ("MASTER_PORT", "5")]].concat()).2.unwrap(), "::1:5");
}

/// The environments of two Hydra jobs do not differ.
#[test]
fn jobs_of_hydra_on_one_host_have_ports_of_their_own() {
    let hydra = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
    let meeting = |proxy| read(&hydra, Some(proxy)).unwrap().map(|told| (told.job, told.meeting));
    assert_eq!(meeting("4711 99"), meeting("4711 99"));
    assert_ne!(meeting("4711 99"), meeting("4712 99"));
    // On several hosts, each host has a Hydra process of its own.
    let several = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "1")];
    assert_eq!(read(&several, Some("4711 99")).unwrap().unwrap().job, 0);
    let named = [&several[..], &[("FLUX_JOB_ID", "f1")]].concat();
    assert_ne!(found(&named).unwrap().job, 0);
}

#[test]
fn srun_may_speak_as_mpiexec() {
    let set = [
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "4"),
        ("PMI_JOBID", "77.0"),
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_NODELIST", "n[5-6]"),
    ];
    let told = found(&set).unwrap();
    assert_eq!((told.launcher, told.rank, told.ranks), ("Slurm", 1, 4));
    assert_eq!(told.meeting.unwrap().host, "n5");
    // Hydra under srun: srun has started Hydra's processes, one per host.
    let hydra = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("PMI_RANK", "3"), ("PMI_SIZE", "4")];
    assert_eq!(found(&hydra).map(|told| (told.launcher, told.rank, told.ranks)), Some(("mpiexec", 3, 4)));
}

#[test]
fn mpirun_and_mpiexec_say_whether_all_are_on_one_host() {
    let mpirun = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "3"), ("PMIX_NAMESPACE", "635568129")];
    assert_eq!(place(&mpirun), (1, 3, None));
    let (rank, world, root) = place(&[&mpirun[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "3")]].concat());
    let root = root.unwrap();
    assert!((rank, world) == (1, 3) && root.starts_with("127.0.0.1:2"), "{root}");
    let hydra = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2"), ("PMI_FD", "6")];
    assert_eq!(place(&hydra), (0, 2, Some("127.0.0.1:18515".to_owned())));
    assert_eq!(place(&[("PMI_RANK", "0"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")]).2, None);
}

#[test]
fn slurm_lists_its_hosts() {
    let task = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "77"), ("SLURM_STEP_ID", "0")];
    let host = |more: &[(&str, &str)]| found(&[&task[..], more].concat()).unwrap().meeting.map(|m| m.host);
    assert_eq!(host(&[]), None);
    assert_eq!(host(&[("SLURM_NNODES", "1"), ("SLURM_NODELIST", "n5")]).as_deref(), Some("127.0.0.1"));
    let two = ("SLURM_NNODES", "2");
    assert_eq!(host(&[two, ("SLURM_NODELIST", "n[5-6]")]).as_deref(), Some("n5"));
    assert_eq!(host(&[two, ("SLURM_LAUNCH_NODE_IPADDR", "10.1.2.3")]).as_deref(), Some("10.1.2.3"));
    let both = [two, ("SLURM_LAUNCH_NODE_IPADDR", "10.1.2.3"), ("SLURM_JOB_NODELIST", "a,b")];
    assert_eq!(host(&both).as_deref(), Some("a"));
    assert_eq!(host(&[two, ("SLURM_NODELIST", "a"), ("MASTER_ADDR", "b")]).as_deref(), Some("b"));
    // A step has its own number of tasks.
    assert_eq!(found(&[&task[..], &[("SLURM_STEP_NUM_TASKS", "4")]].concat()).unwrap().ranks, 4);
    let step = |step| found(&[&task[..3], &[("SLURM_STEP_ID", step)]].concat()).unwrap().job;
    assert_ne!(step("0"), step("1"));
}

#[test]
fn host_lists_are_read_to_their_first_host() {
    for (list, host) in [
        ("tux", "tux"),
        ("tux,other", "tux"),
        ("tux[1-3]", "tux1"),
        ("tux[003-005,7],other", "tux003"),
        ("tux[7,9]", "tux7"),
        ("r[1-2]n[04-10]-ib", "r1n04-ib"),
        ("tux[3", "tux3"),
    ] {
        assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
    }
    for nothing in ["", " ", ",a", "[]"] {
        assert_eq!(first_host(nothing), None, "{nothing}");
    }
}

#[test]
fn torchrun_says_where_to_meet() {
    let torch = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "99")];
    assert_eq!(place(&torch), (1, 2, Some("node7:99".to_owned())));
    let agent = [&torch[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
    assert_eq!(place(&agent), (1, 2, Some("node7:100".to_owned())));
}

#[test]
fn mpirun_goes_before_slurm_which_it_may_run_under() {
    let set =
        [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")];
    assert_eq!(found(&set).map(|told| (told.launcher, told.rank, told.ranks)), Some(("mpirun", 2, 4)));
}

#[test]
fn ports_are_below_those_of_connections() {
    for job in [1, 11_999, 12_000, u64::MAX] {
        assert!((20_000..32_000).contains(&free_port(job)));
    }
}
