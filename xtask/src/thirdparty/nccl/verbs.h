/* The functions of libibverbs that NCCL 2.30 looks up by name and version. */
#ifndef VERBS_H
#define VERBS_H

#include <infiniband/verbs.h>
#include <stdint.h>

#include "check.h"

/* X(name without ibv_, version, whether NCCL refuses a library without it, result, parameters) */
#define SYMBOLS(X) \
	X(get_device_list, "IBVERBS_1.1", 1, struct ibv_device **, (int *)) \
	X(free_device_list, "IBVERBS_1.1", 1, void, (struct ibv_device **)) \
	X(get_device_name, "IBVERBS_1.1", 1, const char *, (struct ibv_device *)) \
	X(open_device, "IBVERBS_1.1", 1, struct ibv_context *, (struct ibv_device *)) \
	X(close_device, "IBVERBS_1.1", 1, int, (struct ibv_context *)) \
	X(get_async_event, "IBVERBS_1.1", 1, int, (struct ibv_context *, struct ibv_async_event *)) \
	X(ack_async_event, "IBVERBS_1.1", 1, void, (struct ibv_async_event *)) \
	X(query_device, "IBVERBS_1.1", 1, int, (struct ibv_context *, struct ibv_device_attr *)) \
	X(query_port, "IBVERBS_1.1", 1, int, (struct ibv_context *, uint8_t, void *)) \
	X(query_gid, "IBVERBS_1.1", 1, int, (struct ibv_context *, uint8_t, int, union ibv_gid *)) \
	X(query_qp, "IBVERBS_1.1", 1, int, (struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *)) \
	X(alloc_pd, "IBVERBS_1.1", 1, struct ibv_pd *, (struct ibv_context *)) \
	X(dealloc_pd, "IBVERBS_1.1", 1, int, (struct ibv_pd *)) \
	X(reg_mr, "IBVERBS_1.1", 1, struct ibv_mr *, (struct ibv_pd *, void *, size_t, int)) \
	X(reg_mr_iova2, "IBVERBS_1.8", 0, struct ibv_mr *, (struct ibv_pd *, void *, size_t, uint64_t, unsigned)) \
	X(reg_dmabuf_mr, "IBVERBS_1.12", 0, struct ibv_mr *, \
	  (struct ibv_pd *, uint64_t, size_t, uint64_t, int, int)) \
	X(dereg_mr, "IBVERBS_1.1", 1, int, (struct ibv_mr *)) \
	X(create_cq, "IBVERBS_1.1", 1, struct ibv_cq *, \
	  (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
	X(destroy_cq, "IBVERBS_1.1", 1, int, (struct ibv_cq *)) \
	X(create_qp, "IBVERBS_1.1", 1, struct ibv_qp *, (struct ibv_pd *, struct ibv_qp_init_attr *)) \
	X(modify_qp, "IBVERBS_1.1", 1, int, (struct ibv_qp *, struct ibv_qp_attr *, int)) \
	X(destroy_qp, "IBVERBS_1.1", 1, int, (struct ibv_qp *)) \
	X(fork_init, "IBVERBS_1.1", 1, int, (void)) \
	X(event_type_str, "IBVERBS_1.1", 1, const char *, (enum ibv_event_type)) \
	X(query_ece, "IBVERBS_1.10", 0, int, (struct ibv_qp *, struct ibv_ece *)) \
	X(set_ece, "IBVERBS_1.10", 0, int, (struct ibv_qp *, struct ibv_ece *)) \
	X(query_port_speed, "IBVERBS_1.16", 0, int, (struct ibv_context *, uint32_t, uint64_t *))

#define MEMBER(name, version, needed, result, parameters) result(*name) parameters;

extern struct verbs {
	SYMBOLS(MEMBER)
} verbs;

/* Loads the library, and returns how many of the functions it has. */
int load_verbs(void);

#endif
