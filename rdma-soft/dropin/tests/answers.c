/* Answers of libibverbs, which the library gives too. */
#include <arpa/inet.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "check.h"

/* Flags and bits of ibv_query_qp_data_in_order, some of which older headers lack. */
enum { RETURN_CAPS = 1, DEVICE_ONLY = 2, WHOLE_MSG = 1, ALIGNED_128_BYTES = 2 };

static struct ibv_context *context;
static struct ibv_qp *qp;

/* A call that fails counts no device. */
static void devices(void)
{
	struct ibv_device **list;
	int count = -1;

	CHECK(setenv("RDMA_SOFT_DEVICES", "none", 1) == 0);
	CHECK(ibv_get_device_list(&count) == NULL && errno == EINVAL && count == 0);
	CHECK(unsetenv("RDMA_SOFT_DEVICES") == 0);
	CHECK((list = ibv_get_device_list(&count)) && count == 1);
	CHECK(context = ibv_open_device(*list));
	ibv_free_device_list(list);
}

/* A key is found with its membership bit. */
static void keys(void)
{
	CHECK(ibv_get_pkey_index(context, 1, htons(0xffff)) == 0);
	CHECK(ibv_get_pkey_index(context, 1, htons(0x7fff)) == -1);
}

/* The function behind the macro fills the structure of 48 bytes that old programs have. */
static void ports(void)
{
	struct ibv_port_attr attr;
	const unsigned char *bytes = (const unsigned char *)&attr;

	memset(&attr, 0xff, sizeof attr);
	CHECK((ibv_query_port)(context, 1, (struct _compat_ibv_port_attr *)&attr) == 0);
	CHECK(attr.link_layer == IBV_LINK_LAYER_ETHERNET && attr.flags == 0);
	CHECK(offsetof(struct ibv_port_attr, flags) == 47 && bytes[48] == 0xff);
}

/* Only the multiples that libibverbs knows are given, in both directions. */
static void rates(void)
{
	CHECK(ibv_rate_to_mult(IBV_RATE_10_GBPS) == 4 && mult_to_ibv_rate(4) == IBV_RATE_10_GBPS);
	CHECK(ibv_rate_to_mult(IBV_RATE_400_GBPS) == 160 && mult_to_ibv_rate(160) == IBV_RATE_400_GBPS);
	CHECK(ibv_rate_to_mult(IBV_RATE_100_GBPS) == -1 && mult_to_ibv_rate(40) == IBV_RATE_MAX);
	CHECK(ibv_rate_to_mbps(IBV_RATE_100_GBPS) == 103125 && mbps_to_ibv_rate(103125) == IBV_RATE_100_GBPS);
}

/* Programs give a queue pair the flags of their regions: a device takes those that it needs. */
static void rights(void)
{
	int region = IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_HUGETLB | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED;
	int flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = flags | region };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static void order(void)
{
	CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0) == 1);
	CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, RETURN_CAPS) == (WHOLE_MSG | ALIGNED_128_BYTES));
	CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, DEVICE_ONLY) == 1);
	CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_SEND, RETURN_CAPS | DEVICE_ONLY) == 0);
}

int main(void)
{
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 1, .max_recv_wr = 1 }, .qp_type = IBV_QPT_RC };
	struct ibv_pd *pd;

	devices();
	keys();
	ports();
	rates();
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(init.send_cq = init.recv_cq = ibv_create_cq(context, 2, NULL, NULL, 0));
	CHECK(qp = ibv_create_qp(pd, &init));
	rights();
	order();
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(init.send_cq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
