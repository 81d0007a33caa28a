/*
 * A consumer of verbs written in C. It reaches the device through verbs.h only: the inline functions of the header for the data
 * path and the extended interface, and for what a library would export, a table that the test hands in.
 *
 * Every check that fails prints its line and makes the harness return it.
 */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/verbs.h>

struct table {
	struct ibv_pd *(*alloc_pd)(struct ibv_context *);
	int (*dealloc_pd)(struct ibv_pd *);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
	int (*dereg_mr)(struct ibv_mr *);
	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *);
	int (*destroy_comp_channel)(struct ibv_comp_channel *);
	struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	int (*destroy_cq)(struct ibv_cq *);
	int (*get_cq_event)(struct ibv_comp_channel *, struct ibv_cq **, void **);
	void (*ack_cq_events)(struct ibv_cq *, unsigned int);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
	int (*destroy_qp)(struct ibv_qp *);
	struct ibv_qp_ex *(*qp_to_qp_ex)(struct ibv_qp *);
	int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
};

#define CHECK(condition)                                                                          \
	do {                                                                                      \
		if (!(condition)) {                                                               \
			fprintf(stderr, "harness.c:%d: %s (errno %d)\n", __LINE__, #condition, errno); \
			return __LINE__;                                                          \
		}                                                                                 \
	} while (0)

/* The symbols that the inline functions fall back to: none must be reached. */
#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	(void)context, (void)port, (void)attr;
	return ENOTRECOVERABLE;
}
int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context, (void)attr;
	return ENOTRECOVERABLE;
}
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	(void)pd, (void)attr;
	errno = ENOTRECOVERABLE;
	return NULL;
}
struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	(void)pd, (void)attr;
	errno = ENOTRECOVERABLE;
	return NULL;
}

static int connect_qp(const struct table *t, struct ibv_qp *qp, uint32_t remote)
{
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = remote,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1 },
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};

	CHECK(t->query_gid(qp->context, 1, 0, &rtr.ah_attr.grh.dgid) == 0);
	CHECK(t->modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	CHECK(t->modify_qp(qp, &rtr,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	CHECK(t->modify_qp(qp, &rts,
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	CHECK(qp->state == IBV_QPS_RTS);
	return 0;
}

static int poll_one(struct ibv_cq *cq, struct ibv_wc *wc)
{
	int count;

	while ((count = ibv_poll_cq(cq, 1, wc)) == 0)
		;
	return count == 1 && wc->status == IBV_WC_SUCCESS ? 0 : -1;
}

/* The classic data path: post, poll, and an event. */
static int classic(const struct table *t, struct ibv_context *context)
{
	char memory[256] __attribute__((aligned(8))) = "from C";
	struct ibv_pd *pd = t->alloc_pd(context);
	struct ibv_comp_channel *channel = t->create_comp_channel(context);
	struct ibv_cq *cq, *event_cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp[2];
	struct ibv_wc wc;
	void *user;
	int i;

	CHECK(pd && pd->context == context);
	CHECK(channel && channel->context == context);
	cq = t->create_cq(context, 16, memory, channel, 0);
	CHECK(cq && cq->context == context && cq->channel == channel && cq->cq_context == memory && cq->cqe >= 16);
	mr = t->reg_mr(pd, memory, sizeof memory,
		       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(mr && mr->pd == pd && mr->addr == memory && mr->length == sizeof memory);
	for (i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2 },
			.qp_type = IBV_QPT_RC,
		};

		qp[i] = t->create_qp(pd, &init);
		CHECK(qp[i] && qp[i]->state == IBV_QPS_RESET && qp[i]->qp_type == IBV_QPT_RC && qp[i]->pd == pd);
		CHECK(t->qp_to_qp_ex(qp[i]) == NULL);
	}
	CHECK(connect_qp(t, qp[0], qp[1]->qp_num) == 0);
	CHECK(connect_qp(t, qp[1], qp[0]->qp_num) == 0);

	{
		struct ibv_sge to = { .addr = (uintptr_t)memory + 100, .length = 50, .lkey = mr->lkey };
		struct ibv_sge from = { .addr = (uintptr_t)memory, .length = 7, .lkey = mr->lkey };
		struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &to, .num_sge = 1 }, *bad_recv = NULL;
		struct ibv_send_wr write = {
			.wr_id = 2,
			.sg_list = &from,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.wr.rdma = { .remote_addr = (uintptr_t)memory + 200, .rkey = mr->rkey },
		};
		struct ibv_send_wr send = {
			.wr_id = 3,
			.next = &write,
			.sg_list = &from,
			.num_sge = 1,
			.opcode = IBV_WR_SEND_WITH_IMM,
			.send_flags = IBV_SEND_SIGNALED,
			.imm_data = htobe32(77),
		}, *bad = NULL;
		struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

		CHECK(ibv_req_notify_cq(cq, 0) == 0);
		CHECK(poll(&fd, 1, 0) == 0);
		CHECK(ibv_post_recv(qp[1], &recv, &bad_recv) == 0);
		CHECK(ibv_post_send(qp[0], &send, &bad) == 0);
		CHECK(poll(&fd, 1, 10000) == 1 && (fd.revents & POLLIN));
		CHECK(t->get_cq_event(channel, &event_cq, &user) == 0);
		CHECK(event_cq == cq && user == memory);
		t->ack_cq_events(cq, 1);
		CHECK(cq->comp_events_completed == 1);
		CHECK(poll_one(cq, &wc) == 0);
		if (wc.wr_id == 3)
			CHECK(poll_one(cq, &wc) == 0);
		CHECK(wc.wr_id == 1 && wc.opcode == IBV_WC_RECV && wc.byte_len == 7 && (wc.wc_flags & IBV_WC_WITH_IMM));
		CHECK(be32toh(wc.imm_data) == 77 && wc.qp_num == qp[1]->qp_num);
		CHECK(strcmp(memory + 100, "from C") == 0);

		/* The write was not signaled: the next request's completion says that it is done. */
		send.next = NULL;
		send.opcode = IBV_WR_RDMA_READ;
		send.wr.rdma.remote_addr = (uintptr_t)memory + 200;
		send.wr.rdma.rkey = mr->rkey;
		from.addr = (uintptr_t)memory + 150;
		CHECK(ibv_post_send(qp[0], &send, &bad) == 0);
		do
			CHECK(poll_one(cq, &wc) == 0);
		while (wc.opcode != IBV_WC_RDMA_READ);
		CHECK(strcmp(memory + 150, "from C") == 0);

		/* A request that is refused is named. */
		send.opcode = IBV_WR_SEND;
		send.next = &write;
		from.addr = (uintptr_t)memory;
		write.num_sge = 17;
		CHECK(ibv_post_recv(qp[1], &recv, &bad_recv) == 0);
		CHECK(ibv_post_send(qp[0], &send, &bad) == EINVAL && bad == &write);
		CHECK(poll_one(cq, &wc) == 0);
		CHECK(poll_one(cq, &wc) == 0);
	}

	for (i = 0; i < 2; i++)
		CHECK(t->destroy_qp(qp[i]) == 0);
	CHECK(t->dereg_mr(mr) == 0);
	CHECK(t->destroy_cq(cq) == 0);
	CHECK(t->destroy_comp_channel(channel) == 0);
	CHECK(t->dealloc_pd(pd) == 0);
	return 0;
}

/* The extended interface: ibv_wr_* and ibv_cq_ex. */
static int extended(const struct table *t, struct ibv_context *context)
{
	char memory[64] __attribute__((aligned(8))) = "extended";
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 8, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
	struct ibv_cq_init_attr_ex clock_attr = { .cqe = 8, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK };
	struct ibv_values_ex before = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK }, after = before;
	struct ibv_device_attr_ex device;
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_pd *pd = t->alloc_pd(context);
	struct ibv_cq_ex *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct ibv_qp_ex *ex;
	int result;

	CHECK(ibv_create_cq_ex(context, &clock_attr) == NULL && errno == EOPNOTSUPP);
	CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
	CHECK(device.completion_timestamp_mask == UINT64_MAX && device.hca_core_clock == 1000000);
	after.comp_mask = 4;
	CHECK(ibv_query_rt_values_ex(context, &after) == EINVAL);
	after.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
	CHECK(ibv_query_rt_values_ex(context, &before) == 0 && before.raw_clock.tv_nsec > 0);
	cq = ibv_create_cq_ex(context, &cq_attr);
	CHECK(pd && cq);
	mr = t->reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr);
	{
		struct ibv_qp_init_attr_ex init = {
			.send_cq = ibv_cq_ex_to_cq(cq),
			.recv_cq = ibv_cq_ex_to_cq(cq),
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 16 },
			.qp_type = IBV_QPT_RC,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.pd = pd,
			.send_ops_flags = IBV_QP_EX_WITH_TSO,
		};

		CHECK(ibv_create_qp_ex(context, &init) == NULL && errno == EOPNOTSUPP);
		init.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
		qp = ibv_create_qp_ex(context, &init);
		CHECK(qp);
	}
	ex = t->qp_to_qp_ex(qp);
	CHECK(ex);
	/* To itself. */
	CHECK(connect_qp(t, qp, qp->qp_num) == 0);
	CHECK(ibv_start_poll(cq, &poll_attr) == ENOENT);

	{
		struct ibv_sge to = { .addr = (uintptr_t)memory + 32, .length = 16, .lkey = mr->lkey };
		struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &to, .num_sge = 1 }, *bad = NULL;
		struct ibv_data_buf pieces[2] = { { .addr = "in", .length = 2 }, { .addr = "line", .length = 5 } };

		CHECK(ibv_post_recv(qp, &recv, &bad) == 0);
		ibv_wr_start(ex);
		ex->wr_id = 2;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory + 16);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 9);
		ex->wr_id = 3;
		ibv_wr_send_imm(ex, htobe32(5));
		ibv_wr_set_inline_data_list(ex, 2, pieces);
		CHECK(ibv_start_poll(cq, &poll_attr) == ENOENT);
		CHECK(ibv_wr_complete(ex) == 0);
	}
	while ((result = ibv_start_poll(cq, &poll_attr)) == ENOENT)
		;
	CHECK(result == 0 && cq->status == IBV_WC_SUCCESS && cq->wr_id == 2);
	CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE && ibv_wc_read_qp_num(cq) == qp->qp_num);
	CHECK(ibv_query_rt_values_ex(context, &after) == 0);
	CHECK(ibv_wc_read_completion_ts(cq) >= (uint64_t)before.raw_clock.tv_nsec);
	CHECK(ibv_wc_read_completion_ts(cq) <= (uint64_t)after.raw_clock.tv_nsec);
	{
		int sends = 0, receives = 0;

		while (sends + receives < 2) {
			while ((result = ibv_next_poll(cq)) == ENOENT)
				;
			CHECK(result == 0 && cq->status == IBV_WC_SUCCESS);
			if (cq->wr_id == 3) {
				sends++;
				CHECK(ibv_wc_read_opcode(cq) == IBV_WC_SEND);
			} else {
				receives++;
				CHECK(cq->wr_id == 1 && ibv_wc_read_opcode(cq) == IBV_WC_RECV && ibv_wc_read_byte_len(cq) == 7);
				CHECK(be32toh(ibv_wc_read_imm_data(cq)) == 5 && (ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM));
			}
		}
		CHECK(ibv_next_poll(cq) == ENOENT);
		ibv_end_poll(cq);
		CHECK(sends == 1 && receives == 1);
	}
	CHECK(strcmp(memory + 16, "extended") == 0 && strcmp(memory + 32, "inline") == 0);

	/* A mistake between start and complete: nothing is posted, and the next batch is clean. */
	ibv_wr_start(ex);
	ibv_wr_atomic_fetch_add(ex, mr->rkey, (uintptr_t)memory + 56, 1);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory + 48, 8);
	ibv_wr_local_inv(ex, mr->rkey);
	CHECK(ibv_wr_complete(ex) == EOPNOTSUPP);
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory + 16);
	ibv_wr_set_inline_data(ex, memory, 33); /* 16 were asked for, 32 given. */
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory + 16);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 9);
	ibv_wr_atomic_fetch_add(ex, mr->rkey, (uintptr_t)memory + 56, 1);
	ibv_wr_set_inline_data(ex, memory, 8); /* An atomic fetches: it needs a place for the result. */
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	for (result = 0; result < 5; result++)
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory);
	CHECK(ibv_wr_complete(ex) == ENOMEM);
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory);
	ibv_wr_abort(ex);
	CHECK(ibv_start_poll(cq, &poll_attr) == ENOENT);

	CHECK(t->destroy_qp(qp) == 0);
	CHECK(t->dereg_mr(mr) == 0);
	CHECK(t->destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	CHECK(t->dealloc_pd(pd) == 0);
	return 0;
}

/* Device memory: written and read by the processor, and by a queue pair that is connected to itself. */
static int device_memory(const struct table *t, struct ibv_context *context)
{
	char memory[64] = "to the device";
	struct ibv_device_attr_ex device;
	struct ibv_alloc_dm_attr attr = { .length = 64, .log_align_req = 6 };
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 4 };
	struct ibv_pd *pd = t->alloc_pd(context);
	struct ibv_cq *cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &cq_attr));
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED;
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp;
	struct ibv_mr *mr, *host;
	struct ibv_dm *dm;

	CHECK(pd && cq);
	CHECK(ibv_query_device_ex(context, NULL, &device) == 0 && device.max_dm_size >= 64);
	attr.comp_mask = 1;
	CHECK(ibv_alloc_dm(context, &attr) == NULL && errno == EOPNOTSUPP);
	attr = (struct ibv_alloc_dm_attr){ .length = device.max_dm_size + 1 };
	CHECK(ibv_alloc_dm(context, &attr) == NULL && errno == EINVAL);
	attr = (struct ibv_alloc_dm_attr){ .length = 64, .log_align_req = 13 };
	CHECK(ibv_alloc_dm(context, &attr) == NULL && errno == EINVAL);
	attr.log_align_req = 6;
	dm = ibv_alloc_dm(context, &attr);
	CHECK(dm);
	CHECK(ibv_memcpy_to_dm(dm, 0, memory, 16) == 0);
	CHECK(ibv_memcpy_to_dm(dm, 64, memory, 4) == EINVAL && ibv_memcpy_to_dm(dm, 0, memory, 68) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 2, memory, 4) == EINVAL && ibv_memcpy_from_dm(memory, dm, 0, 2) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, UINT64_MAX, memory, 4) == EINVAL && ibv_memcpy_from_dm(NULL, dm, 0, 4) == EINVAL);
	CHECK(ibv_reg_dm_mr(pd, dm, 4, 64, access) == NULL && errno == EINVAL);
	CHECK(ibv_reg_dm_mr(pd, dm, 0, 64, access & ~IBV_ACCESS_ZERO_BASED) == NULL && errno == EINVAL);
	mr = ibv_reg_dm_mr(pd, dm, 4, 60, access);
	host = t->reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && host && mr->length == 60);
	CHECK(ibv_free_dm(dm) == EBUSY);

	qp = t->create_qp(pd, &init);
	CHECK(qp && connect_qp(t, qp, qp->qp_num) == 0);
	{
		/* A write from the device's memory to itself, whose addresses begin at 0. */
		struct ibv_sge from = { .addr = 0, .length = 8, .lkey = mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
		struct ibv_wc wc;
		int result;

		wr.wr.rdma.rkey = mr->rkey;
		wr.wr.rdma.remote_addr = 20;
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
		while ((result = ibv_poll_cq(cq, 1, &wc)) == 0)
			;
		CHECK(result == 1 && wc.status == IBV_WC_SUCCESS);
		from = (struct ibv_sge){ .addr = (uintptr_t)memory, .length = 8, .lkey = host->lkey };
		wr.opcode = IBV_WR_RDMA_READ;
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
		while ((result = ibv_poll_cq(cq, 1, &wc)) == 0)
			;
		CHECK(result == 1 && wc.status == IBV_WC_SUCCESS && memcmp(memory, "he devic", 8) == 0);
	}
	CHECK(ibv_memcpy_from_dm(memory + 32, dm, 24, 8) == 0 && memcmp(memory + 32, "he devic", 8) == 0);

	CHECK(t->destroy_qp(qp) == 0);
	CHECK(t->dereg_mr(mr) == 0 && t->dereg_mr(host) == 0);
	CHECK(ibv_free_dm(dm) == 0);
	CHECK(t->destroy_cq(cq) == 0);
	CHECK(t->dealloc_pd(pd) == 0);
	return 0;
}

/* What the device lacks fails cleanly, whether the header checks the slot or not. */
static int lacking(struct ibv_context *context)
{
	struct ibv_port_attr port;
	struct ibv_device_attr_ex device;
	struct ibv_td_init_attr td = { 0 };
	struct ibv_xrcd_init_attr xrcd_attr = { 0 };
	struct ibv_xrcd xrcd = { .context = context };
	struct ibv_mw mw = { .context = context };
	struct ibv_td *domain;
	struct ibv_qp qp = { .context = context };
	struct ibv_pd pd = { .context = context };
	struct ibv_wq_init_attr wq = { 0 };
	struct ibv_mw_bind bind = { 0 };
	struct ibv_srq_init_attr_ex srq_attr = {
		.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE,
		.pd = &pd,
		.srq_type = IBV_SRQT_XRC,
	};

	CHECK(___ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE && port.lid == 0 &&
	      port.active_mtu == IBV_MTU_4096);
	CHECK(___ibv_query_port(context, 2, &port) == EINVAL);
	CHECK(ibv_query_device_ex(context, NULL, &device) == 0 && device.orig_attr.phys_port_cnt == 1);
	domain = ibv_alloc_td(context, &td);
	CHECK(domain && ibv_dealloc_td(domain) == 0);
	CHECK(ibv_open_xrcd(context, &xrcd_attr) == NULL && errno == EOPNOTSUPP);
	CHECK(ibv_close_xrcd(&xrcd) == EOPNOTSUPP);
	CHECK(ibv_create_srq_ex(context, &srq_attr) == NULL && errno == EOPNOTSUPP);
	CHECK(ibv_alloc_mw(&pd, IBV_MW_TYPE_1) == NULL && errno == EOPNOTSUPP);
	mw.type = IBV_MW_TYPE_1;
	mw.pd = &pd;
	CHECK(ibv_dealloc_mw(&mw) == EOPNOTSUPP);
	/* The header asks the region that is to be bound for its domain. */
	{
		struct ibv_mr mr = { .context = context, .pd = &pd };

		qp.pd = &pd;
		bind.bind_info.mr = &mr;
		bind.bind_info.length = 1;
		CHECK(ibv_bind_mw(&qp, &mw, &bind) == EOPNOTSUPP);
	}
	CHECK(ibv_create_wq(context, &wq) == NULL && errno == EOPNOTSUPP);
	CHECK(ibv_alloc_null_mr(&pd) == NULL && errno == EOPNOTSUPP);
	CHECK(ibv_create_counters(context, NULL) == NULL && errno == EOPNOTSUPP);
	return 0;
}

int harness(const struct table *t, struct ibv_context *context)
{
	int line;

	if ((line = classic(t, context)) || (line = extended(t, context)) || (line = device_memory(t, context)) ||
	    (line = lacking(context)))
		return line;
	return 0;
}
