#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "device.h"

/* A port's attributes as newer headers have them: NCCL passes this size. */
struct long_port_attr {
	struct ibv_port_attr attr;
	uint32_t active_speed_ex;
};

struct device devices[DEVICES];

/* The version of RoCE that a GID is for. */
static int roce_version(const struct device *device, int index)
{
	char path[256], text[16] = "";
	int file;

	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/gid_attrs/types/%d",
		 verbs.get_device_name(device->context->device), index);
	if ((file = open(path, O_RDONLY)) < 0) {
		fprintf(stderr, "no %s: run by soft-rdma --sysfs, or with -g\n", path);
		exit(1);
	}
	CHECK(read(file, text, sizeof text - 1) > 0);
	close(file);
	return strncmp(text, "RoCE v2", 7) == 0 ? 2 : 1;
}

/* The first GID of an IPv4 address for RoCE v2, or else the first one of all. */
static int choose_gid(const struct device *device)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	union ibv_gid gid;

	if (device->attr.link_layer == IBV_LINK_LAYER_INFINIBAND)
		return 0;
	if (options.gid_index >= 0)
		return options.gid_index;
	for (int index = 0; index < device->attr.gid_tbl_len; index++) {
		CHECK((errno = verbs.query_gid(device->context, 1, index, &gid)) == 0);
		if (!memcmp(gid.raw, mapped, sizeof mapped) && roce_version(device, index) == 2)
			return index;
	}
	return 0;
}

/* Asks for the port's attributes by the context, as the inline function of newer headers does. */
static void query_port(struct device *device)
{
	struct verbs_context *context = verbs_get_ctx_op(device->context, query_port);
	struct long_port_attr new;
	struct ibv_port_attr old;

	memset(&new, 0xff, sizeof new);
	CHECK(context != NULL);
	CHECK((errno = context->query_port(device->context, 1, &new.attr, sizeof new)) == 0);
	CHECK(new.active_speed_ex != UINT32_MAX);
	memset(&old, 0, sizeof old);
	CHECK((errno = verbs.query_port(device->context, 1, &old)) == 0);
	CHECK(old.state == new.attr.state && old.lid == new.attr.lid && old.link_layer == new.attr.link_layer);
	CHECK(old.state == IBV_PORT_ACTIVE);
	device->attr = new.attr;
}

static void query_speed(const struct device *device)
{
	uint64_t speed = 0;

	if (verbs.query_port_speed && verbs.query_port_speed(device->context, 1, &speed) == 0)
		CHECK(speed > 0);
	else
		CHECK(device->attr.active_speed && device->attr.active_width);
}

/* NCCL takes any error but two for a kernel that can register a dma-buf. */
static void probe_dmabuf(struct device *device)
{
	struct ibv_pd *pd;

	CHECK(pd = verbs.alloc_pd(device->context));
	errno = 0;
	CHECK(!verbs.reg_dmabuf_mr || !verbs.reg_dmabuf_mr(pd, 0, 0, 0, -1, 0));
	CHECK(!verbs.reg_dmabuf_mr || errno == EOPNOTSUPP || errno == EPROTONOSUPPORT || errno == EBADF);
	CHECK((errno = verbs.dealloc_pd(pd)) == 0);
}

/* Counts fatal events in the integer that the object's context points to. The thread ends with the
 * process: it waits in the library while the connections close. */
static void *watch_events(void *argument)
{
	struct device *device = argument;
	struct ibv_async_event event;

	while (verbs.get_async_event(device->context, &event) == 0) {
		struct ibv_qp_init_attr init;
		struct ibv_qp_attr attr;
		const char *name;

		CHECK(name = verbs.event_type_str(event.event_type));
		switch (event.event_type) {
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_REQ_ERR:
		case IBV_EVENT_QP_ACCESS_ERR:
			CHECK((errno = verbs.query_qp(event.element.qp, &attr,
						      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN, &init)) == 0);
			printf("%s: QP %#x, state %d: %s\n", verbs.get_device_name(device->context->device),
			       event.element.qp->qp_num, attr.qp_state, name);
			CHECK(attr.qp_state == IBV_QPS_ERR && init.qp_context == event.element.qp->qp_context);
			atomic_fetch_add((atomic_int *)event.element.qp->qp_context, 1);
			break;
		case IBV_EVENT_COMM_EST:
			break;
		default:
			fprintf(stderr, "unexpected event: %s\n", name);
			exit(1);
		}
		verbs.ack_async_event(&event);
	}
	return NULL;
}

void open_devices(void)
{
	struct ibv_device **list;
	struct ibv_device_attr attr;
	pthread_t thread;
	int count = 0;

	CHECK(verbs.fork_init() != -1);
	CHECK(list = verbs.get_device_list(&count));
	if (count < options.devices) {
		fprintf(stderr, "there are %d devices\n", count);
		exit(1);
	}
	for (int i = 0; i < options.devices; i++) {
		struct device *device = &devices[i];

		CHECK(device->context = verbs.open_device(list[i]));
		CHECK(list[i]->name[0] && !strcmp(list[i]->name, verbs.get_device_name(list[i])));
		memset(&attr, 0, sizeof attr);
		CHECK((errno = verbs.query_device(device->context, &attr)) == 0 && attr.phys_port_cnt > 0);
		query_port(device);
		query_speed(device);
		probe_dmabuf(device);
		device->gid_index = choose_gid(device);
		CHECK((errno = verbs.query_gid(device->context, 1, device->gid_index, &device->gid)) == 0);
		CHECK((errno = pthread_create(&thread, NULL, watch_events, device)) == 0);
		CHECK((errno = pthread_detach(thread)) == 0);
	}
	verbs.free_device_list(list);
}

struct ibv_pd *use_pd(struct device *device)
{
	if (device->pd_users++ == 0)
		CHECK(device->pd = verbs.alloc_pd(device->context));
	return device->pd;
}

void release_pd(struct device *device)
{
	if (--device->pd_users == 0)
		CHECK((errno = verbs.dealloc_pd(device->pd)) == 0);
}
