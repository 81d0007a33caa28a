/*
 * Two endpoints of one process, made by rdma_create_ep, exchange a message. The passive one receives
 * with a shared receive queue of its id.
 */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>

#include <rdma/rdma_verbs.h>

#include "endpoint.h"

enum { SIZE = 64 };

/* The active endpoint: its queue pair comes with it. */
static void *client(void *service)
{
	static char memory[SIZE] = "from an endpoint";
	struct rdma_addrinfo *res = resolve(service, 0);
	struct ibv_qp_init_attr attr = queue_pair();
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	CHECK(rdma_create_ep(&id, res, NULL, &attr) == 0);
	rdma_freeaddrinfo(res);
	CHECK(mr = rdma_reg_msgs(id, memory, SIZE));
	CHECK(rdma_connect(id, NULL) == 0);
	CHECK(rdma_post_send(id, NULL, memory, SIZE, mr, 0) == 0);
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	return NULL;
}

/* Gives a request's id a shared receive queue, and a queue pair that uses it. */
static void prepare(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr qp = queue_pair();
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex again = {
		.attr = srq.attr,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE,
		.srq_type = IBV_SRQT_BASIC,
	};

	CHECK(rdma_create_srq_ex(id, &again) == 0 && id->srq && again.pd == id->pd);
	CHECK(rdma_create_srq(id, NULL, &srq) == -1 && errno == EINVAL);
	rdma_destroy_srq(id);
	CHECK(id->srq == NULL);
	again.srq_type = IBV_SRQT_XRC;
	CHECK(rdma_create_srq_ex(id, &again) == -1 && errno == EOPNOTSUPP);
	CHECK(rdma_create_srq(id, NULL, &srq) == 0);
	CHECK(rdma_create_qp(id, NULL, &qp) == 0 && qp.srq == id->srq && id->qp->srq == id->srq);
	rdma_destroy_srq(id);
	CHECK(id->srq && "a queue in use stays");
}

int main(void)
{
	static char memory[SIZE], service[8];
	struct rdma_addrinfo *res = resolve("0", RAI_PASSIVE);
	struct rdma_cm_id *listener, *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	pthread_t thread;

	CHECK(rdma_create_ep(&listener, res, NULL, NULL) == 0);
	rdma_freeaddrinfo(res);
	CHECK(rdma_listen(listener, 1) == 0);
	snprintf(service, sizeof service, "%d", ntohs(rdma_get_src_port(listener)));
	CHECK(pthread_create(&thread, NULL, client, service) == 0);
	CHECK(rdma_get_request(listener, &id) == 0);
	prepare(id);
	CHECK(mr = rdma_reg_msgs(id, memory, SIZE));
	CHECK(rdma_post_recv(id, NULL, memory, SIZE, mr) == 0);
	CHECK(rdma_accept(id, NULL) == 0);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(wc.byte_len == SIZE && strcmp(memory, "from an endpoint") == 0);
	/* Each end waits until the other has disconnected too. */
	CHECK(rdma_disconnect(id) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	puts("ok");
	return 0;
}
