/* Connections of one direction, made by the calls that NCCL makes, in its order. */
#ifndef CONNECT_H
#define CONNECT_H

#include "device.h"

enum {
	QPS = 16,
	/* The requests of a connection that may be under way, and the slots of its arrays. */
	REQUESTS = 256,
	/* The receives that one request may have. */
	RECEIVES = 8,
};

/* What the receiver writes into the sender's memory: where one message may go. */
struct credit {
	uint64_t address, length;
	uint32_t rkeys[DEVICES];
	uint32_t count, tag;
	/* Of the request, from 1: it says that the rest is valid. */
	_Atomic uint64_t number;
};

/* What a side tells its peer of a queue pair, and of a device. */
struct qp_info {
	uint32_t number;
	int device;
	int has_ece;
	struct ibv_ece ece;
};

struct device_info {
	union ibv_gid gid;
	uint32_t lid, rkey;
	uint8_t port, link_layer;
	enum ibv_mtu mtu;
};

struct info {
	struct qp_info qps[QPS];
	struct device_info devices[DEVICES];
	/* The receiver writes credits there, the sender writes the lengths of messages. */
	uint64_t address;
	int traffic_class, service_level;
};

struct request {
	enum { UNUSED, SEND, RECEIVE, FLUSH } kind;
	uint64_t number;
	int count;
	/* The completions that are still to come, by device. */
	int events[DEVICES];
	uint32_t size;
	char *data;
	struct ibv_mr **mrs;
};

/* What the sender and the receiver of a connection both have. */
struct side {
	int is_sender, socket, qp_count;
	struct ibv_cq *cqs[DEVICES];
	struct ibv_qp *qps[QPS];
	struct info own, peer;
	uint64_t head;
	/* The fatal events of the queue pairs, whose context points here. */
	atomic_int fatal;
	struct request requests[REQUESTS];
};

struct sender {
	struct side side;
	struct credit credits[REQUESTS][RECEIVES];
	int sizes[REQUESTS][RECEIVES];
	uint64_t scratch;
	struct ibv_mr *credit_mrs[DEVICES], *size_mrs[DEVICES], *scratch_mrs[DEVICES];
	struct request *matched[REQUESTS][RECEIVES];
	int matched_count[REQUESTS];
	/* Spoils the keys of the next message. */
	int spoil;
};

struct receiver {
	struct side side;
	/* The credits as they are written to the sender. */
	struct credit credits[REQUESTS][RECEIVES];
	int sizes[REQUESTS][RECEIVES];
	int flushed;
	uint32_t max_inline;
	struct ibv_mr *credit_mrs[DEVICES], *size_mrs[DEVICES], *flush_mrs[DEVICES];
	struct ibv_qp *flush_qps[DEVICES];
	struct request *active[REQUESTS];
};

/* Make the two sides of a connection over a TCP socket. */
struct sender *connect_sender(int socket);
struct receiver *accept_receiver(int socket);
void close_sender(struct sender *sender);
void close_receiver(struct receiver *receiver);

/* Take a failed side's queue pairs through the reset to work again. */
void reset_qps(struct side *side);
void restart_sender(struct sender *sender);
void restart_receiver(struct receiver *receiver);

/* Posts a receive without memory: messages are writes with immediate data. */
void post_empty_receive(struct ibv_qp *qp, uint64_t id);

/* Sends to and receives from the other process. */
void tell(int socket, const void *data, size_t length);
void hear(int socket, void *data, size_t length);

#endif
