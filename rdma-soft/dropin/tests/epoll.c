/* The functions that librdmacm has since rdma-core 61, which older headers lack. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <sys/epoll.h>

#include <rdma/rsocket.h>

#include "check.h"

int main(void)
{
	int (*create)(int) = dlvsym(RTLD_DEFAULT, "repoll_create", "RDMACM_1.5");
	int (*ctl)(int, int, int, struct epoll_event *) = dlvsym(RTLD_DEFAULT, "repoll_ctl", "RDMACM_1.5");
	int (*await)(int, struct epoll_event *, int, int) = dlvsym(RTLD_DEFAULT, "repoll_wait", "RDMACM_1.5");
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof address;
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 5 }, events[2];
	int listener, client, server, list;
	char byte = 1;

	CHECK(create && ctl && await);
	CHECK((list = create(EPOLL_CLOEXEC)) >= 0);
	CHECK((listener = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(rbind(listener, (struct sockaddr *)&address, len) == 0);
	CHECK(rlisten(listener, 1) == 0);
	CHECK(rgetsockname(listener, (struct sockaddr *)&address, &len) == 0);
	CHECK(ctl(list, EPOLL_CTL_ADD, listener, &event) == 0);
	CHECK(await(list, events, 2, 0) == 0);
	CHECK((client = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(rconnect(client, (struct sockaddr *)&address, len) == 0);
	CHECK(await(list, events, 2, -1) == 1);
	CHECK(events[0].events == EPOLLIN && events[0].data.u32 == 5);
	CHECK((server = raccept(listener, NULL, NULL)) >= 0);
	event.data.u32 = 6;
	CHECK(ctl(list, EPOLL_CTL_ADD, server, &event) == 0);
	CHECK(rwrite(client, &byte, 1) == 1);
	CHECK(await(list, events, 2, -1) == 1);
	CHECK(events[0].events == EPOLLIN && events[0].data.u32 == 6);
	CHECK(ctl(list, EPOLL_CTL_DEL, server, NULL) == 0);
	CHECK(await(list, events, 2, 0) == 0);
	CHECK(ctl(list, EPOLL_CTL_DEL, server, NULL) == -1 && errno == ENOENT);
	CHECK(rclose(list) == 0);
	CHECK(rclose(client) == 0 && rclose(server) == 0 && rclose(listener) == 0);
	puts("ok");
	return 0;
}
