// forks PORT [ADDRESS]: a server and its client on two hosts, whose processes fork while they are
// connected. Each child opens the device anew and has a connection of its own to a child of the
// other side; the parents' connection goes on meanwhile. Every message is compared.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 20000, CHILDREN = 4, PSN = 77 };

struct address {
    union ibv_gid gid;
    uint32_t qpn;
};

struct connection {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *buffer;  // SIZE bytes to send, then SIZE bytes to receive
    int is_client;
};

static const char *me;

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s (process %d): %s\n", me, getpid(), what);
    exit(1);
}

static void whole(int sock, void *data, size_t length, int sends) {
    for (char *at = data; length > 0;) {
        ssize_t done = sends ? write(sock, at, length) : read(sock, at, length);
        check(done > 0, "the socket of the other side has ended");
        at += done;
        length -= done;
    }
}

// Returns when the other side calls this, too: it has posted its receive, or got the last message.
static void both_are_here(int sock) {
    char byte = 0;
    whole(sock, &byte, 1, 1);
    whole(sock, &byte, 1, 0);
}

static void post_receive(struct connection *c) {
    struct ibv_sge sge = {.addr = (uintptr_t)(c->buffer + SIZE), .length = SIZE, .lkey = c->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
    check(ibv_post_recv(c->qp, &wr, &bad) == 0, "ibv_post_recv");
}

// Opens the device and connects a queue pair with that of the other side of the socket.
static struct connection connected(int sock, int is_client) {
    struct connection c = {.is_client = is_client};
    struct ibv_device **list = ibv_get_device_list(NULL);
    check(list && list[0], "there is no device");
    struct ibv_context *context = ibv_open_device(list[0]);
    check(context != NULL, "ibv_open_device");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    c.cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    c.buffer = calloc(2, SIZE);
    check(pd && c.cq && c.buffer, "there is no memory");
    c.mr = ibv_reg_mr(pd, c.buffer, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp_init_attr init = {.send_cq = c.cq,
                                    .recv_cq = c.cq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    c.qp = ibv_create_qp(pd, &init);
    check(c.mr && c.qp, "there is no queue pair");

    struct address ours = {.qpn = c.qp->qp_num}, theirs;
    check(ibv_query_gid(context, 1, 0, &ours.gid) == 0, "ibv_query_gid");
    whole(sock, &ours, sizeof ours, 1);
    whole(sock, &theirs, sizeof theirs, 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    check(ibv_modify_qp(c.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "INIT");
    post_receive(&c);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = theirs.qpn,
                                .rq_psn = PSN,
                                .min_rnr_timer = 1,
                                .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = theirs.gid, .hop_limit = 64}}};
    check(ibv_modify_qp(c.qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
          "RTR");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = PSN};
    check(ibv_modify_qp(c.qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC) == 0,
          "RTS");
    both_are_here(sock);
    return c;
}

static void fill(unsigned char *at, int round, int of_client) {
    for (int i = 0; i < SIZE; i++) at[i] = (unsigned char)(i * 7 + round * 2 + of_client);
}

// Sends a message if it is this side's turn, and waits for its completion and for a message.
static void exchange(struct connection *c, int round) {
    static unsigned char expected[SIZE];
    struct ibv_sge sge = {.addr = (uintptr_t)c->buffer, .length = SIZE, .lkey = c->mr->lkey};
    struct ibv_send_wr wr = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .wr_id = 2}, *bad;
    int sent = 0, arrived = 0, posted = 0;
    while (!sent || !arrived) {
        if (!posted && (c->is_client || arrived)) {
            fill(c->buffer, round, c->is_client);
            check(ibv_post_send(c->qp, &wr, &bad) == 0, "ibv_post_send");
            posted = 1;
        }
        struct ibv_wc wc;
        int count = ibv_poll_cq(c->cq, 1, &wc);
        check(count >= 0, "ibv_poll_cq");
        if (count == 0) continue;
        check(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
        if (wc.wr_id == 2) {
            sent = 1;
            continue;
        }
        fill(expected, round, !c->is_client);
        check(wc.byte_len == SIZE && memcmp(expected, c->buffer + SIZE, SIZE) == 0, "another message has arrived");
        arrived = 1;
        post_receive(c);
    }
}

static int call(const char *host, const char *port) {
    struct addrinfo *info;
    check(getaddrinfo(host, port, NULL, &info) == 0, "getaddrinfo");
    int sock = socket(info->ai_family, SOCK_STREAM, 0);
    check(connect(sock, info->ai_addr, info->ai_addrlen) == 0, "connect");
    freeaddrinfo(info);
    return sock;
}

int main(int argc, char **argv) {
    check(argc == 2 || argc == 3, "usage: forks PORT [ADDRESS]");
    int is_client = argc == 3, listener = -1, round = 0;
    me = is_client ? "client" : "server";
    if (!is_client) {
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
        listener = socket(AF_INET, SOCK_STREAM, 0);
        check(bind(listener, (void *)&any, sizeof any) == 0 && listen(listener, CHILDREN + 1) == 0, "listen");
    }
    int sock = is_client ? call(argv[2], argv[1]) : accept(listener, NULL, NULL);
    struct connection parents = connected(sock, is_client);
    while (round < 20) exchange(&parents, round++);
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        int own = is_client ? call(argv[2], argv[1]) : accept(listener, NULL, NULL);
        children[i] = fork();
        check(children[i] >= 0, "fork");
        if (children[i] == 0) {
            me = is_client ? "child of the client" : "child of the server";
            struct connection c = connected(own, is_client);
            for (int j = 0; j < 50; j++) exchange(&c, j);
            both_are_here(own);
            // The parent's queue pair is not the child's.
            struct ibv_send_wr none = {.opcode = IBV_WR_SEND}, *bad;
            check(ibv_post_send(parents.qp, &none, &bad) != 0, "the child sends by its parent's queue pair");
            exit(0);
        }
        close(own);
        while (round < 40 + 20 * i) exchange(&parents, round++);
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        check(waitpid(children[i], &status, 0) == children[i] && status == 0, "a child has failed");
    }
    while (round < 120) exchange(&parents, round++);
    both_are_here(sock);
    printf("%d messages\n", round);
    return 0;
}
