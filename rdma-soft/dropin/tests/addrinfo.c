/* Lists of rdma_getaddrinfo, whose parts are memory of malloc, as librdmacm's. */
#include <netdb.h>
#include <stddef.h>
#include <string.h>

#include <infiniband/ib.h>

#include "endpoint.h"

/* The address family is a hint for getaddrinfo, unless it is AF_IB: that is one for ibacm, and with
 * RAI_FAMILY for numbers, which are then GIDs. */
static void families(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST, .ai_family = AF_IB, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *res;

	CHECK(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &res) == 0);
	CHECK(res->ai_family == AF_INET && res->ai_dst_len == sizeof(struct sockaddr_in));
	rdma_freeaddrinfo(res);
	hints.ai_flags = RAI_FAMILY;
	CHECK(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &res) == 0 && res->ai_family == AF_INET);
	rdma_freeaddrinfo(res);
	hints.ai_flags = RAI_FAMILY | RAI_NUMERICHOST;
	CHECK(rdma_getaddrinfo("fe80::1", "7471", &hints, &res) == EAI_FAMILY);
	hints.ai_family = AF_INET6;
	CHECK(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &res) != 0);
}

/* A program may take an address out of the list, and put one of its own there. */
static void parts(void)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_port = htons(7) }, *taken;
	struct rdma_addrinfo *res = resolve("7471", 0);

	taken = (struct sockaddr_in *)res->ai_dst_addr;
	CHECK(res->ai_dst_addr = malloc(sizeof own));
	memcpy(res->ai_dst_addr, &own, sizeof own);
	CHECK(res->ai_src_addr == NULL && (res->ai_src_addr = malloc(sizeof own)));
	CHECK(res->ai_connect = malloc(8));
	res->ai_next = resolve("7472", 0);
	rdma_freeaddrinfo(res);
	CHECK(taken->sin_port == htons(7471) && taken->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	free(taken);
}

/* Addresses of the hints are copied, whatever their family. */
static void copies(void)
{
	struct sockaddr_ib ib = { .sib_family = AF_IB, .sib_sid = 7 };
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(7) };
	struct rdma_addrinfo hints = { .ai_family = AF_IB }, *res;

	hints.ai_dst_addr = (struct sockaddr *)&ib;
	hints.ai_dst_len = sizeof ib;
	hints.ai_src_addr = (struct sockaddr *)&in;
	hints.ai_src_len = sizeof in;
	CHECK(rdma_getaddrinfo(NULL, NULL, &hints, &res) == 0);
	CHECK(res->ai_family == AF_IB && res->ai_dst_len == sizeof ib && res->ai_src_len == sizeof in);
	CHECK(memcmp(res->ai_dst_addr, &ib, sizeof ib) == 0 && memcmp(res->ai_src_addr, &in, sizeof in) == 0);
	rdma_freeaddrinfo(res);
}

int main(void)
{
	families();
	parts();
	copies();
	puts("ok");
	return 0;
}
