/* The attributes of endpoints over loopback: of queue pairs, and of addresses. */
#include <rdma/rdma_cma.h>

#include "check.h"

static inline struct ibv_qp_init_attr queue_pair(void)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	return attr;
}

static inline struct rdma_addrinfo *resolve(const char *service, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *res;

	CHECK(rdma_getaddrinfo("127.0.0.1", service, &hints, &res) == 0);
	return res;
}
