/*
 * Threads with a pending cancellation make, connect, use and destroy everything. They are cancelled
 * where they wait for an event, and nowhere else.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <string.h>

#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

#include "endpoint.h"

enum { SIZE = 64 };

/* Exported, but declared only by the headers of drivers. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static char port[8];
static struct rdma_cm_id *listener;
static int listening, tcp_port;

static struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	char text[16];

	CHECK(list && *list);
	CHECK(context = ibv_open_device(*list));
	CHECK(ibv_read_sysfs_file((*list)->ibdev_path, "hca_type", text, sizeof text) > 0);
	ibv_free_device_list(list);
	return context;
}

/* Connects a queue pair to itself. */
static void connect_to_itself(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1 },
		.timeout = 14,
		.retry_cnt = 7,
	};

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	CHECK(ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void poll_one(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
}

/* Sends a message from a buffer to itself. */
static void exchange(struct ibv_qp *qp, struct ibv_srq *srq, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = SIZE, .lkey = mr->lkey };
	struct ibv_recv_wr *bad_recv, recv = { .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr *bad_send, send = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};

	CHECK(ibv_req_notify_cq(qp->send_cq, 0) == 0);
	CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == 0);
	CHECK(ibv_post_send(qp, &send, &bad_send) == 0);
	poll_one(qp->send_cq);
	poll_one(qp->send_cq);
}

/* All objects of the verbs. */
static void *verbs(void *unused)
{
	static char memory[SIZE];
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 4, .max_send_sge = 1 }, .qp_type = IBV_QPT_RC };
	struct ibv_ah_attr ah_attr = { .is_global = 1, .port_num = 1 };
	struct ibv_async_event event;
	struct ibv_mr *mr, *on_demand;
	struct ibv_srq *srq;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_ah *ah;

	(void)unused;
	CHECK(pthread_cancel(pthread_self()) == 0);
	CHECK(context = open_device());
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE));
	CHECK(on_demand = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
	CHECK(channel = ibv_create_comp_channel(context));
	CHECK(cq = ibv_create_cq(context, 4, NULL, channel, 0));
	CHECK(srq = ibv_create_srq(pd, &srq_init));
	init.send_cq = init.recv_cq = cq;
	init.srq = srq;
	CHECK(qp = ibv_create_qp(pd, &init));
	connect_to_itself(qp);
	CHECK(ibv_query_gid(context, 1, 0, &ah_attr.grh.dgid) == 0);
	CHECK(ah = ibv_create_ah(pd, &ah_attr));
	exchange(qp, srq, mr);
	exchange(qp, srq, on_demand);
	CHECK(ibv_destroy_ah(ah) == 0);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_dereg_mr(on_demand) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	CHECK(context = open_device());
	ibv_get_async_event(context, &event);
	CHECK(!"this thread was cancelled");
	return NULL;
}

static void wait_for_cm_event(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;

	CHECK(channel);
	rdma_get_cm_event(channel, &event);
	CHECK(!"this thread was cancelled");
}

static void *active_endpoint(void *unused)
{
	static char memory[SIZE] = "from an endpoint";
	struct ibv_qp_init_attr attr = queue_pair();
	struct rdma_addrinfo *res;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;

	(void)unused;
	CHECK(pthread_cancel(pthread_self()) == 0);
	res = resolve(port, 0);
	CHECK(rdma_create_ep(&id, res, NULL, &attr) == 0);
	rdma_freeaddrinfo(res);
	CHECK(mr = rdma_reg_msgs(id, memory, SIZE));
	CHECK(rdma_connect(id, NULL) == 0);
	CHECK(rdma_post_send(id, NULL, memory, SIZE, mr, 0) == 0);
	poll_one(id->send_cq);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	wait_for_cm_event();
	return NULL;
}

static void *passive_endpoint(void *unused)
{
	static char memory[SIZE];
	struct ibv_qp_init_attr attr = queue_pair();
	struct rdma_cm_id *id;
	struct ibv_mr *mr;

	(void)unused;
	/* This call waits for an event. */
	CHECK(rdma_get_request(listener, &id) == 0);
	CHECK(pthread_cancel(pthread_self()) == 0);
	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
	CHECK(mr = rdma_reg_msgs(id, memory, SIZE));
	CHECK(rdma_post_recv(id, NULL, memory, SIZE, mr) == 0);
	CHECK(rdma_accept(id, NULL) == 0);
	poll_one(id->recv_cq);
	CHECK(strcmp(memory, "from an endpoint") == 0);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	wait_for_cm_event();
	return NULL;
}

static void *active_socket(void *unused)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	char text[SIZE];
	int socket;

	(void)unused;
	CHECK(pthread_cancel(pthread_self()) == 0);
	address.sin_port = htons(tcp_port);
	CHECK((socket = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(rconnect(socket, (struct sockaddr *)&address, sizeof address) == 0);
	CHECK(rsend(socket, "ping", 4, 0) == 4);
	CHECK(rrecv(socket, text, 4, MSG_WAITALL) == 4 && !memcmp(text, "pong", 4));
	CHECK(rshutdown(socket, SHUT_RDWR) == 0);
	CHECK(rclose(socket) == 0);
	wait_for_cm_event();
	return NULL;
}

static void *passive_socket(void *unused)
{
	char text[SIZE];
	int socket;

	(void)unused;
	CHECK(pthread_cancel(pthread_self()) == 0);
	CHECK((socket = raccept(listening, NULL, NULL)) >= 0);
	CHECK(rrecv(socket, text, 4, MSG_WAITALL) == 4 && !memcmp(text, "ping", 4));
	CHECK(rsend(socket, "pong", 4, 0) == 4);
	CHECK(rrecv(socket, text, 1, 0) == 0);
	CHECK(rclose(socket) == 0);
	CHECK(rclose(listening) == 0);
	wait_for_cm_event();
	return NULL;
}

static void listen_on_both(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_addrinfo *res = resolve("0", RAI_PASSIVE);
	socklen_t length = sizeof address;

	CHECK(rdma_create_ep(&listener, res, NULL, NULL) == 0);
	rdma_freeaddrinfo(res);
	CHECK(rdma_listen(listener, 1) == 0);
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listener)));
	CHECK((listening = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(rbind(listening, (struct sockaddr *)&address, sizeof address) == 0);
	CHECK(rlisten(listening, 1) == 0);
	CHECK(rgetsockname(listening, (struct sockaddr *)&address, &length) == 0);
	tcp_port = ntohs(address.sin_port);
}

int main(void)
{
	void *(*const work[])(void *) = { verbs, passive_endpoint, active_endpoint, passive_socket, active_socket };
	pthread_t threads[sizeof work / sizeof *work];

	listen_on_both();
	for (unsigned i = 0; i < sizeof work / sizeof *work; i++)
		CHECK(pthread_create(&threads[i], NULL, work[i], NULL) == 0);
	for (unsigned i = 0; i < sizeof work / sizeof *work; i++) {
		void *result;

		CHECK(pthread_join(threads[i], &result) == 0);
		CHECK(result == PTHREAD_CANCELED);
	}
	puts("ok");
	return 0;
}
