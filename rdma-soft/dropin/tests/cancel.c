/* A thread that sleeps in a verb, or calls one later, can be cancelled; others then get the events. */
#include <arpa/inet.h>
#include <pthread.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "endpoint.h"

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct rdma_event_channel *cm_channel;
static struct rdma_cm_id *listener;

static void *get_async_event(void *unused)
{
	struct ibv_async_event event;

	(void)unused;
	CHECK(ibv_get_async_event(context, &event) == 0);
	ibv_ack_async_event(&event);
	return NULL;
}

static void *get_cq_event(void *unused)
{
	struct ibv_cq *cq;
	void *cq_context;

	(void)unused;
	CHECK(ibv_get_cq_event(channel, &cq, &cq_context) == 0);
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void *get_cm_event(void *unused)
{
	struct rdma_cm_event *event;

	(void)unused;
	CHECK(rdma_get_cm_event(cm_channel, &event) == 0);
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_ack_cm_event(event) == 0);
	return NULL;
}

static void *get_request(void *unused)
{
	struct rdma_cm_id *id;

	(void)unused;
	CHECK(rdma_get_request(listener, &id) == 0);
	rdma_destroy_ep(id);
	return NULL;
}

static void *connect_to_listener(void *unused)
{
	struct ibv_qp_init_attr attr = queue_pair();
	struct rdma_addrinfo *res;
	struct rdma_cm_id *id;
	char port[8];

	(void)unused;
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listener)));
	res = resolve(port, 0);
	CHECK(rdma_create_ep(&id, res, NULL, &attr) == 0);
	rdma_freeaddrinfo(res);
	/* The listener's side destroys the request. */
	CHECK(rdma_connect(id, NULL) == -1);
	rdma_destroy_ep(id);
	return NULL;
}

static void listen_for_requests(void)
{
	struct rdma_addrinfo *res = resolve("0", RAI_PASSIVE);

	CHECK(rdma_create_ep(&listener, res, NULL, NULL) == 0);
	rdma_freeaddrinfo(res);
	CHECK(rdma_listen(listener, 1) == 0);
}

/* After the cancelled threads, another one gets the request. */
static void request(void)
{
	pthread_t thread;
	void *result;

	CHECK(pthread_create(&thread, NULL, connect_to_listener, NULL) == 0);
	get_request(NULL);
	CHECK(pthread_join(thread, &result) == 0);
	CHECK(result == NULL);
	rdma_destroy_ep(listener);
}

/* Cancels a thread at once, and threads after these sleeps. */
static void cancel(void *(*wait)(void *))
{
	const useconds_t sleeps[] = { 0, 20000, 300000 };

	for (unsigned i = 0; i < sizeof sleeps / sizeof *sleeps; i++) {
		pthread_t thread;
		void *result;

		CHECK(pthread_create(&thread, NULL, wait, NULL) == 0);
		usleep(sleeps[i]);
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &result) == 0);
		CHECK(result == PTHREAD_CANCELED);
	}
}

/* A thread with cancellation disabled waits on, and gets its event. */
static void *get_cm_event_whole(void *unused)
{
	int before;

	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0);
	get_cm_event(unused);
	CHECK(pthread_setcancelstate(before, &before) == 0);
	CHECK(before == PTHREAD_CANCEL_DISABLE);
	return NULL;
}

static void resolve_address(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *id, *other;
	pthread_t thread;
	void *result;

	CHECK(rdma_create_id(cm_channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000) == 0);
	get_cm_event(NULL);
	CHECK(rdma_create_id(cm_channel, &other, NULL, RDMA_PS_TCP) == 0);
	CHECK(pthread_create(&thread, NULL, get_cm_event_whole, NULL) == 0);
	usleep(20000);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(rdma_resolve_addr(other, NULL, (struct sockaddr *)&address, 2000) == 0);
	CHECK(pthread_join(thread, &result) == 0);
	CHECK(result == NULL);
	CHECK(rdma_destroy_id(other) == 0);
	CHECK(rdma_destroy_id(id) == 0);
}

/* A cancellation that is pending during a verb that makes an event does not end the verb. */
static void *fail_and_get_cq_event(void *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	CHECK(pthread_cancel(pthread_self()) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	return get_cq_event(NULL);
}

/* The flush of a receive is an event. */
static void complete(struct ibv_cq *cq)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .cap = { .max_send_wr = 1, .max_recv_wr = 1 }, .qp_type = IBV_QPT_RC
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_recv_wr wr = { 0 }, *bad;
	struct ibv_qp *qp;
	struct ibv_wc wc;
	pthread_t thread;
	void *result;

	CHECK(pd);
	CHECK(qp = ibv_create_qp(pd, &init));
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	CHECK(pthread_create(&thread, NULL, fail_and_get_cq_event, qp) == 0);
	CHECK(pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
	get_cq_event(NULL);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_cq *cq;

	CHECK(list && *list);
	CHECK(context = ibv_open_device(*list));
	ibv_free_device_list(list);
	CHECK(channel = ibv_create_comp_channel(context));
	CHECK(cq = ibv_create_cq(context, 4, NULL, channel, 0));
	CHECK(cm_channel = rdma_create_event_channel());

	cancel(get_async_event);
	cancel(get_cq_event);
	cancel(get_cm_event);
	listen_for_requests();
	cancel(get_request);
	request();
	complete(cq);
	resolve_address();

	rdma_destroy_event_channel(cm_channel);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
