/* Wrong arguments, and objects that are destroyed in the wrong order, give error numbers. */
#include <arpa/inet.h>
#include <limits.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_verbs.h>

#include "check.h"

/* Exported, but declared only by the headers of drivers. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index, unsigned *type);

/* A call that returns this value and sets this errno. */
#define FAILS(call, value, error) CHECK((errno = 0, (call) == (value)) && errno == (error))

static char memory[4096];

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_qp *qp;

static struct ibv_qp_init_attr queues(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	return init;
}

static void create_all(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp_init_attr init;

	CHECK(list && *list);
	CHECK(context = ibv_open_device(*list));
	ibv_free_device_list(list);
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
	CHECK(channel = ibv_create_comp_channel(context));
	CHECK(cq = ibv_create_cq(context, 8, NULL, channel, 0));
	CHECK(srq = ibv_create_srq(pd, &srq_init));
	init = queues();
	init.srq = srq;
	CHECK(qp = ibv_create_qp(pd, &init));
}

/* Objects are destroyed before those that they use. */
static void destroy_all(void)
{
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
}

static void devices(void)
{
	struct ibv_gid_entry entries[256];
	struct ibv_device own = { .name = "own" };
	struct ibv_port_attr port;
	union ibv_gid gid;
	unsigned type;
	uint16_t pkey;

	FAILS(ibv_open_device(NULL), NULL, EINVAL);
	FAILS(ibv_get_device_name(NULL), NULL, EINVAL);
	CHECK(strcmp(ibv_get_device_name(&own), "own") == 0);
	ibv_free_device_list(NULL);
	CHECK(ibv_query_device(context, NULL) == EINVAL);
	CHECK(ibv_query_port(context, 0, &port) == EINVAL && ibv_query_port(context, 2, &port) == EINVAL);
	FAILS(ibv_query_gid(context, 1, -1, &gid), -1, EINVAL);
	FAILS(ibv_query_gid(context, 1, INT_MAX, &gid), -1, EINVAL);
	FAILS(ibv_query_gid(context, 1, 0, NULL), -1, EINVAL);
	FAILS(ibv_query_pkey(context, 1, 1, &pkey), -1, EINVAL);
	CHECK(ibv_query_gid_ex(context, 1, 0, entries, 1) == EOPNOTSUPP);
	CHECK(ibv_query_gid_ex(context, 1, 0, NULL, 0) == EINVAL);
	CHECK(ibv_query_gid_table(context, entries, 256, 1) == -EOPNOTSUPP);
	CHECK(ibv_query_gid_table(context, entries, 0, 0) == -EINVAL);
	CHECK(ibv_query_gid_table(context, NULL, 256, 0) == -EINVAL);
	CHECK(_ibv_query_gid_table(context, entries, 256, 0, 0) == -EINVAL);
	FAILS(ibv_query_gid_type(context, 1, 0, NULL), -1, EINVAL);
	FAILS(ibv_query_gid_type(NULL, 1, 0, &type), -1, EINVAL);
	CHECK(ibv_read_sysfs_file(NULL, "hca_type", memory, 16) == -1);
	CHECK(ibv_read_sysfs_file("/sys", NULL, memory, 16) == -1);
	CHECK(ibv_read_sysfs_file(context->device->ibdev_path, "hca_type", NULL, 16) == -1);
	/* "rdma-soft" fits with its end or not at all: the caller takes the buffer for a string. */
	CHECK(ibv_read_sysfs_file(context->device->ibdev_path, "hca_type", memory, 10) == 9 && strlen(memory) == 9);
	CHECK(ibv_read_sysfs_file(context->device->ibdev_path, "hca_type", memory, 9) == -1);
	/* No more is read than the buffer holds, and the file lies below the folder. */
	CHECK(ibv_read_sysfs_file("/dev", "zero", memory, 16) == -1);
	CHECK(ibv_read_sysfs_file("/sys", "/etc/passwd", memory, 4096) == -1);
}

static void regions(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey };

	FAILS(ibv_reg_mr(pd, memory, 0, 0), NULL, EINVAL);
	FAILS(ibv_reg_mr(pd, memory, SIZE_MAX, 0), NULL, EINVAL);
	FAILS(ibv_reg_mr(pd, NULL, 4096, 0), NULL, EFAULT);
	FAILS(ibv_reg_mr(pd, memory, 8, IBV_ACCESS_REMOTE_WRITE), NULL, EINVAL);
	FAILS(ibv_reg_mr_iova2(pd, memory, 8, UINT64_MAX, 0), NULL, EINVAL);
	FAILS(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_CMD, EINVAL);
	FAILS(ibv_rereg_mr(mr, 1 << 10, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT, EINVAL);
	FAILS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_CMD, EINVAL);
	FAILS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 8, 0), IBV_REREG_MR_ERR_INPUT, EINVAL);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0) == EINVAL);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 1) == EFAULT);
	CHECK(ibv_advise_mr(pd, 99, 0, &sge, 1) == EOPNOTSUPP);
}

static void completion_queues(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 8, .wc_flags = 1ULL << 60 };
	struct ibv_wc wc;
	void *user;

	FAILS(ibv_create_cq(context, 0, NULL, NULL, 0), NULL, EINVAL);
	FAILS(ibv_create_cq(context, INT_MAX, NULL, NULL, 0), NULL, EINVAL);
	FAILS(ibv_create_cq(context, 8, NULL, NULL, context->num_comp_vectors), NULL, EINVAL);
	FAILS(ibv_create_cq(context, 8, NULL, NULL, -1), NULL, EINVAL);
	FAILS(ibv_create_cq_ex(context, &init), NULL, EOPNOTSUPP);
	CHECK(ibv_resize_cq(cq, 0) == EINVAL && ibv_resize_cq(cq, -1) == EINVAL);
	CHECK(ibv_poll_cq(cq, 1, NULL) == -EINVAL);
	CHECK(ibv_poll_cq(cq, -1, &wc) == -EINVAL);
	CHECK(ibv_poll_cq(cq, 0, NULL) == 0);
	FAILS(ibv_get_cq_event(NULL, &cq, &user), -1, EINVAL);
	ibv_ack_cq_events(NULL, 1);
}

/* Takes a new queue pair to the state ERR. */
static void fail(struct ibv_qp *own)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	CHECK(ibv_modify_qp(own, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(own, &attr, IBV_QP_STATE) == 0);
}

/* The flush of a receive is an event. A call that cannot return it leaves it for another call. */
static void events(void)
{
	struct ibv_qp_init_attr init = queues();
	struct ibv_recv_wr wr = { 0 }, *bad;
	struct ibv_cq *found;
	struct ibv_qp *own;
	struct ibv_wc wc;
	void *user;

	CHECK(own = ibv_create_qp(pd, &init));
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	fail(own);
	CHECK(ibv_post_recv(own, &wr, &bad) == 0);
	FAILS(ibv_get_cq_event(channel, NULL, &user), -1, EINVAL);
	FAILS(ibv_get_cq_event(channel, &found, NULL), -1, EINVAL);
	CHECK(ibv_get_cq_event(channel, &found, &user) == 0 && found == cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_destroy_qp(own) == 0);
	FAILS(ibv_get_async_event(context, NULL), -1, EINVAL);
	ibv_ack_async_event(NULL);
}

static void queue_pairs(void)
{
	struct ibv_qp_init_attr init = queues();
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_send_wr *bad_send, send = { .num_sge = 1 };
	struct ibv_recv_wr *bad_recv, recv = { .num_sge = -1 };
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1 };
	struct ibv_srq_attr srq_attr = { .srq_limit = 100 };
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = UINT_MAX, .max_sge = 1 } };
	union ibv_gid group = { .raw = { 0xff } };

	init.cap.max_send_wr = UINT_MAX;
	FAILS(ibv_create_qp(pd, &init), NULL, EINVAL);
	init = queues();
	init.send_cq = NULL;
	FAILS(ibv_create_qp(pd, &init), NULL, EINVAL);
	init = queues();
	init.qp_type = 99;
	FAILS(ibv_create_qp(pd, &init), NULL, EINVAL);
	FAILS(ibv_create_qp(pd, NULL), NULL, EINVAL);
	CHECK(ibv_modify_qp(qp, NULL, IBV_QP_STATE) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, 1 << 30) == EINVAL);
	CHECK(ibv_query_qp(qp, &attr, 0, NULL) == EINVAL);
	CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 1 << 20) == 0);
	CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL && bad_send == &send);
	CHECK(ibv_post_send(qp, &send, NULL) == EINVAL);
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	CHECK(ibv_attach_mcast(qp, &group, 0) == EINVAL && ibv_attach_mcast(qp, NULL, 0) == EINVAL);
	CHECK(ibv_detach_mcast(qp, &group, 0) == EINVAL);
	FAILS(ibv_create_srq(pd, &srq_init), NULL, EINVAL);
	CHECK(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_modify_srq(srq, &srq_attr, 1 << 20) == EINVAL);
	FAILS(ibv_create_ah(pd, NULL), NULL, EINVAL);
	ah.port_num = 2;
	FAILS(ibv_create_ah(pd, &ah), NULL, EINVAL);
	ah.port_num = 1;
	ah.grh.sgid_index = 255;
	FAILS(ibv_create_ah(pd, &ah), NULL, EINVAL);
}

/* The first wrong call of a batch is the answer of ibv_wr_complete. */
static void batches(void)
{
	struct ibv_qp_init_attr basic = queues();
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = basic.cap,
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = 1ULL << 60,
	};
	struct ibv_data_buf data = { .length = 8 };
	struct ibv_qp_ex *batch;
	struct ibv_qp *own;
	struct ibv_wc wc;

	FAILS(ibv_create_qp_ex(context, &init), NULL, EOPNOTSUPP);
	init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	init.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	FAILS(ibv_create_qp_ex(context, &init), NULL, EINVAL);
	init.comp_mask |= IBV_QP_INIT_ATTR_PD;
	CHECK(own = ibv_create_qp_ex(context, &init));
	CHECK(ibv_qp_to_qp_ex(qp) == NULL && (batch = ibv_qp_to_qp_ex(own)));
	/* In this state a queue pair takes requests. */
	fail(own);
#define ANSWERS(set, error) \
	(ibv_wr_start(batch), ibv_wr_send(batch), set, ibv_wr_send(batch), CHECK(ibv_wr_complete(batch) == error))
	ANSWERS(ibv_wr_set_sge_list(batch, 1, NULL), EINVAL);
	ANSWERS(ibv_wr_set_sge_list(batch, SIZE_MAX, NULL), EINVAL);
	ANSWERS(ibv_wr_set_inline_data(batch, NULL, 8), EINVAL);
	ANSWERS(ibv_wr_set_inline_data(batch, memory, SIZE_MAX), EINVAL);
	ANSWERS(ibv_wr_set_inline_data_list(batch, 1, NULL), EINVAL);
	ANSWERS(ibv_wr_set_inline_data_list(batch, 1, &data), EINVAL);
	ANSWERS(ibv_wr_set_ud_addr(batch, NULL, 1, 1), EINVAL);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	ANSWERS(ibv_wr_set_sge_list(batch, 0, NULL), 0);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && ibv_poll_cq(cq, 1, &wc) == 1);
	CHECK(ibv_destroy_qp(own) == 0);
}

static void manager(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr other = { .sa_family = AF_UNIX };
	struct rdma_addrinfo hints = { .ai_src_len = 16 }, *res;
	struct rdma_conn_param param = { .private_data = memory, .private_data_len = 255 };
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct ibv_qp_init_attr init = queues();
	struct rdma_cm_id *id, *request;
	int number = 1;

	CHECK(events);
	FAILS(rdma_create_id(events, NULL, NULL, RDMA_PS_TCP), -1, EINVAL);
	FAILS(rdma_create_id(events, &id, NULL, 0), -1, EINVAL);
	CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
	FAILS(rdma_bind_addr(id, NULL), -1, EINVAL);
	FAILS(rdma_bind_addr(id, &other), -1, EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, NULL, 1000), -1, EINVAL);
	FAILS(rdma_resolve_route(id, 1000), -1, EINVAL);
	FAILS(rdma_connect(id, &param), -1, EINVAL);
	FAILS(rdma_accept(id, &param), -1, EINVAL);
	FAILS(rdma_reject(id, NULL, 255), -1, EINVAL);
	FAILS(rdma_disconnect(id), -1, EINVAL);
	FAILS(rdma_notify(id, 99), -1, EINVAL);
	FAILS(rdma_create_qp(id, NULL, &init), -1, EINVAL);
	FAILS(rdma_get_request(id, &request), -1, EINVAL);
	FAILS(rdma_set_option(id, 99, 0, &number, sizeof number), -1, ENOSYS);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, 99, &number, sizeof number), -1, ENOSYS);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), -1, EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &number, SIZE_MAX), -1, EINVAL);
	FAILS(rdma_leave_multicast(id, (struct sockaddr *)&address), -1, EADDRNOTAVAIL);
	FAILS(rdma_get_cm_event(events, NULL), -1, EINVAL);
	FAILS(rdma_get_cm_event(NULL, NULL), -1, EINVAL);
	FAILS(rdma_ack_cm_event(NULL), -1, EINVAL);
	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &res), -1, EINVAL);
	FAILS(rdma_getaddrinfo(NULL, NULL, &hints, &res), -1, EINVAL);
	FAILS(rdma_getaddrinfo("127.0.0.1", "1", NULL, NULL), -1, EINVAL);
	FAILS(rdma_create_ep(&request, NULL, NULL, NULL), -1, EINVAL);
	FAILS(rdma_migrate_id(NULL, NULL), -1, EINVAL);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&address) == 0);
	/* The domain is the connection manager's. */
	CHECK(ibv_dealloc_pd(id->pd) == EBUSY);
	CHECK(rdma_listen(id, -1) == 0);
	FAILS(rdma_listen(id, 1), -1, EINVAL);
	FAILS(rdma_destroy_id(NULL), -1, EINVAL);
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	rdma_free_devices(NULL);
	rdma_freeaddrinfo(NULL);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(events);
}

int main(void)
{
	create_all();
	devices();
	regions();
	completion_queues();
	events();
	queue_pairs();
	batches();
	manager();
	destroy_all();
	puts("ok");
	return 0;
}
