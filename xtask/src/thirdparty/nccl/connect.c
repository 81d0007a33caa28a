#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "connect.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))

void tell(int socket, const void *data, size_t length)
{
	for (const char *next = data; length;) {
		ssize_t sent = send(socket, next, length, MSG_NOSIGNAL);

		CHECK(sent > 0);
		next += sent;
		length -= sent;
	}
}

void hear(int socket, void *data, size_t length)
{
	CHECK(recv(socket, data, length, MSG_WAITALL) == (ssize_t)length);
}

static struct ibv_mr *register_array(struct device *device, void *data, size_t length)
{
	struct ibv_mr *mr;

	CHECK(mr = verbs.reg_mr(device->pd, data, length,
				IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
	return mr;
}

static struct ibv_qp *create_qp(struct side *side, int device, int sends, int receives, uint32_t *max_inline)
{
	struct ibv_qp_init_attr init = {
		.qp_context = &side->fatal,
		.send_cq = side->cqs[device],
		.recv_cq = side->cqs[device],
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp;

	init.cap.max_inline_data = options.send_inline ? sizeof(struct credit) : 0;
	CHECK(qp = verbs.create_qp(devices[device].pd, &init));
	CHECK(!options.send_inline || init.cap.max_inline_data >= sizeof(struct credit));
	if (max_inline)
		*max_inline = options.send_inline ? init.cap.max_inline_data : 0;
	return qp;
}

static void to_init(struct ibv_qp *qp, int rights)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = rights };

	CHECK((errno = verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       IBV_QP_ACCESS_FLAGS)) == 0);
}

static void to_rtr(struct ibv_qp *qp, const struct device *device, const struct device_info *peer,
		   uint32_t number, const struct info *path)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = MIN(device->attr.active_mtu, peer->mtu),
		.dest_qp_num = number,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .sl = path->service_level, .port_num = 1 },
	};

	if (peer->link_layer == IBV_LINK_LAYER_ETHERNET) {
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.dgid = peer->gid;
		attr.ah_attr.grh.sgid_index = device->gid_index;
		attr.ah_attr.grh.hop_limit = 255;
		attr.ah_attr.grh.traffic_class = path->traffic_class;
	} else {
		attr.ah_attr.dlid = peer->lid;
	}
	CHECK((errno = verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) == 0);
}

static void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};

	CHECK((errno = verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)) == 0);
}

/* A device without options for the connection says so by one of two numbers; then the sides
 * connect without. */
static int is_supported(int error)
{
	CHECK((errno = error) == 0 || error == EOPNOTSUPP || error == ENOTSUP);
	return error == 0;
}

static int query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	return verbs.query_ece && is_supported(verbs.query_ece(qp, ece));
}

static int set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	return verbs.set_ece && is_supported(verbs.set_ece(qp, ece));
}

/* The domains and completion queues, once each side knows how many devices its peer has. */
static void open_side(struct side *side, int socket, int entries)
{
	int count = options.devices, theirs;

	side->socket = socket;
	side->qp_count = options.qps * count;
	CHECK(side->qp_count <= QPS);
	tell(socket, &count, sizeof count);
	hear(socket, &theirs, sizeof theirs);
	CHECK(theirs == count);
	for (int i = 0; i < count; i++) {
		use_pd(&devices[i]);
		CHECK(side->cqs[i] = verbs.create_cq(devices[i].context, entries, &side->fatal, NULL, 0));
		CHECK(side->cqs[i]->cqe >= entries);
	}
}

static void describe(struct info *info, int device, uint32_t rkey)
{
	info->devices[device] = (struct device_info) {
		.gid = devices[device].gid,
		.lid = devices[device].attr.lid,
		.rkey = rkey,
		.port = 1,
		.link_layer = devices[device].attr.link_layer,
		.mtu = devices[device].attr.active_mtu,
	};
}

static void sender_to_rts(struct sender *sender)
{
	struct side *side = &sender->side;

	for (int i = 0; i < side->qp_count; i++) {
		struct qp_info *peer = &side->peer.qps[i];

		if (side->own.qps[i].has_ece && peer->has_ece)
			CHECK(set_ece(side->qps[i], &peer->ece));
		to_rtr(side->qps[i], &devices[i % options.devices], &side->peer.devices[peer->device], peer->number,
		       &side->peer);
		to_rts(side->qps[i]);
	}
}

enum { SENDER_RIGHTS = IBV_ACCESS_REMOTE_WRITE };

struct sender *connect_sender(int socket)
{
	struct sender *sender = aligned_alloc(4096, (sizeof *sender + 4095) & ~4095ul);
	struct side *side = &sender->side;

	CHECK(sender);
	memset(sender, 0, sizeof *sender);
	side->is_sender = 1;
	open_side(side, socket, REQUESTS * options.qps);
	for (int i = 0; i < side->qp_count; i++) {
		struct qp_info *own = &side->own.qps[i];

		own->device = i % options.devices;
		side->qps[i] = create_qp(side, own->device, 2 * REQUESTS, 0, NULL);
		own->number = side->qps[i]->qp_num;
		to_init(side->qps[i], SENDER_RIGHTS);
		own->has_ece = query_ece(side->qps[i], &own->ece);
	}
	for (int i = 0; i < options.devices; i++) {
		CHECK(sender->scratch_mrs[i] = verbs.reg_mr(devices[i].pd, &sender->scratch, sizeof sender->scratch,
							     IBV_ACCESS_LOCAL_WRITE));
		sender->credit_mrs[i] = register_array(&devices[i], sender->credits, sizeof sender->credits);
		describe(&side->own, i, sender->credit_mrs[i]->rkey);
	}
	side->own.address = (uintptr_t)sender->credits;
	side->own.traffic_class = options.traffic_class;
	side->own.service_level = options.service_level;
	tell(socket, &side->own, sizeof side->own);
	hear(socket, &side->peer, sizeof side->peer);
	for (int i = 0; i < options.devices; i++)
		sender->size_mrs[i] = register_array(&devices[i], sender->sizes, sizeof sender->sizes);
	sender_to_rts(sender);
	tell(socket, "r", 1);
	return sender;
}

enum { RECEIVER_RIGHTS = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ };

static void receiver_to_rts(struct receiver *receiver, int i)
{
	struct side *side = &receiver->side;
	struct qp_info *peer = &side->peer.qps[i], *own = &side->own.qps[i];

	own->has_ece = peer->has_ece && set_ece(side->qps[i], &peer->ece);
	to_rtr(side->qps[i], &devices[own->device], &side->peer.devices[peer->device], peer->number, &side->peer);
	to_rts(side->qps[i]);
	if (own->has_ece)
		own->has_ece = query_ece(side->qps[i], &own->ece);
	if (options.by_number) {
		for (int receive = 0; receive < REQUESTS; receive++)
			post_empty_receive(side->qps[i], UINT64_MAX);
	}
}

/* A queue pair that is its own peer: a read by it makes earlier writes visible. */
static void connect_flush_qp(struct receiver *receiver, int device)
{
	struct side *side = &receiver->side;
	struct ibv_qp *qp = create_qp(side, device, REQUESTS, 0, NULL);

	describe(&side->own, device, 0);
	to_init(qp, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	to_rtr(qp, &devices[device], &side->own.devices[device], qp->qp_num, &side->peer);
	to_rts(qp);
	receiver->flush_qps[device] = qp;
}

struct receiver *accept_receiver(int socket)
{
	struct receiver *receiver = aligned_alloc(4096, (sizeof *receiver + 4095) & ~4095ul);
	struct side *side = &receiver->side;
	char ready;

	CHECK(receiver);
	memset(receiver, 0, sizeof *receiver);
	open_side(side, socket, 2 * REQUESTS * options.qps);
	hear(socket, &side->peer, sizeof side->peer);
	for (int i = 0; i < side->qp_count; i++) {
		struct qp_info *own = &side->own.qps[i];

		own->device = i % options.devices;
		side->qps[i] = create_qp(side, own->device, 2 * REQUESTS, REQUESTS, &receiver->max_inline);
		own->number = side->qps[i]->qp_num;
		to_init(side->qps[i], RECEIVER_RIGHTS);
		receiver_to_rts(receiver, i);
	}
	for (int i = 0; i < options.devices; i++) {
		connect_flush_qp(receiver, i);
		receiver->credit_mrs[i] = register_array(&devices[i], receiver->credits, sizeof receiver->credits);
		receiver->size_mrs[i] = register_array(&devices[i], receiver->sizes, sizeof receiver->sizes);
		CHECK(receiver->flush_mrs[i] = verbs.reg_mr(devices[i].pd, &receiver->flushed,
							     sizeof receiver->flushed, IBV_ACCESS_LOCAL_WRITE));
		describe(&side->own, i, receiver->size_mrs[i]->rkey);
	}
	side->own.address = (uintptr_t)receiver->sizes;
	side->own.traffic_class = side->peer.traffic_class;
	side->own.service_level = side->peer.service_level;
	tell(socket, &side->own, sizeof side->own);
	hear(socket, &ready, 1);
	return receiver;
}

void reset_qps(struct side *side)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	for (int i = 0; i < side->qp_count; i++)
		CHECK((errno = verbs.modify_qp(side->qps[i], &attr, IBV_QP_STATE)) == 0);
}

void restart_sender(struct sender *sender)
{
	for (int i = 0; i < sender->side.qp_count; i++)
		to_init(sender->side.qps[i], SENDER_RIGHTS);
	sender_to_rts(sender);
}

void restart_receiver(struct receiver *receiver)
{
	for (int i = 0; i < receiver->side.qp_count; i++) {
		to_init(receiver->side.qps[i], RECEIVER_RIGHTS);
		receiver_to_rts(receiver, i);
	}
}

void post_empty_receive(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_recv_wr receive = { .wr_id = id }, *bad;

	CHECK((errno = ibv_post_recv(qp, &receive, &bad)) == 0);
}

static void destroy_qps(struct side *side)
{
	for (int i = 0; i < side->qp_count; i++)
		CHECK((errno = verbs.destroy_qp(side->qps[i])) == 0);
}

static void deregister(struct ibv_mr **mrs)
{
	for (int i = 0; i < options.devices; i++)
		CHECK((errno = verbs.dereg_mr(mrs[i])) == 0);
}

static void close_side(struct side *side)
{
	for (int i = 0; i < options.devices; i++) {
		CHECK((errno = verbs.destroy_cq(side->cqs[i])) == 0);
		release_pd(&devices[i]);
	}
}

void close_sender(struct sender *sender)
{
	destroy_qps(&sender->side);
	deregister(sender->credit_mrs);
	deregister(sender->size_mrs);
	deregister(sender->scratch_mrs);
	close_side(&sender->side);
	free(sender);
}

void close_receiver(struct receiver *receiver)
{
	destroy_qps(&receiver->side);
	for (int i = 0; i < options.devices; i++)
		CHECK((errno = verbs.destroy_qp(receiver->flush_qps[i])) == 0);
	deregister(receiver->credit_mrs);
	deregister(receiver->size_mrs);
	deregister(receiver->flush_mrs);
	close_side(&receiver->side);
	free(receiver);
}
