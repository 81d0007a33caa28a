/*
 * Objects that a program in C makes and destroys itself. It reaches the provider by verbs.h, and by a table for what a library
 * exports. Every check that fails prints its line and makes the function return it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/verbs.h>

struct table {
	struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	int (*destroy_cq)(struct ibv_cq *);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*destroy_qp)(struct ibv_qp *);
	struct ibv_srq *(*create_srq)(struct ibv_pd *, struct ibv_srq_init_attr *);
	int (*destroy_srq)(struct ibv_srq *);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
	int (*dereg_mr)(struct ibv_mr *);
};

struct objects {
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qps[2];
	struct ibv_mr *mr;
};

#define CHECK(condition)                                                                          \
	do {                                                                                      \
		if (!(condition)) {                                                               \
			fprintf(stderr, "objects.c:%d: %s (errno %d)\n", __LINE__, #condition, errno); \
			return __LINE__;                                                          \
		}                                                                                 \
	} while (0)

/* Makes two queue pairs, the second of which takes its receives from a shared queue if `shares`, and registers memory. */
int make(const struct table *t, struct ibv_pd *pd, void *memory, size_t length, int shares, struct objects *o)
{
	memset(o, 0, sizeof *o);
	CHECK(o->cq = t->create_cq(pd->context, 256, o, NULL, 0));
	if (shares) {
		struct ibv_srq_init_attr srq = {.srq_context = o, .attr = {.max_wr = 16, .max_sge = 1}};
		CHECK(o->srq = t->create_srq(pd, &srq));
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.qp_context = o,
			.send_cq = o->cq,
			.recv_cq = o->cq,
			.srq = i == 1 ? o->srq : NULL,
			.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
			.qp_type = IBV_QPT_RC,
		};
		CHECK(o->qps[i] = t->create_qp(pd, &init));
	}
	CHECK(o->mr = t->reg_mr(pd, memory, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE));
	return 0;
}

/* Posts a receive of C code, to the shared queue if there is one. */
int post_receive(struct objects *o, uint64_t wr_id, size_t offset, uint32_t length)
{
	struct ibv_sge sge = {.addr = (uintptr_t)o->mr->addr + offset, .length = length, .lkey = o->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
	CHECK((o->srq ? ibv_post_srq_recv(o->srq, &wr, &bad) : ibv_post_recv(o->qps[1], &wr, &bad)) == 0);
	return 0;
}

/* Destroys all that `make` has made: whoever had it has let go of it, and destroyed none of it. */
int unmake(const struct table *t, struct objects *o)
{
	CHECK(t->destroy_qp(o->qps[0]) == 0);
	CHECK(t->destroy_qp(o->qps[1]) == 0);
	CHECK(!o->srq || t->destroy_srq(o->srq) == 0);
	CHECK(t->destroy_cq(o->cq) == 0);
	CHECK(t->dereg_mr(o->mr) == 0);
	return 0;
}
