#include <arpa/inet.h>
#include <string.h>

#include "transfer.h"

enum {
	/* Pieces of a message that is split begin at multiples of this. */
	ALIGNMENT = 128,
	/* Longer messages are followed by a write of their own for the immediate data. */
	ADAPTIVE_THRESHOLD = 8192,
	/* Distinguishes reads of the flush queue pairs. */
	FLUSH_ID = 0x1000,
};

static struct request *new_request(struct side *side)
{
	for (int i = 0; i < REQUESTS; i++) {
		struct request *request = &side->requests[i];

		if (request->kind == UNUSED) {
			memset(request, 0, sizeof *request);
			request->number = side->head;
			return request;
		}
	}
	fprintf(stderr, "too many requests\n");
	exit(1);
}

/* The queue pairs that carry a request: one of each device, or all. */
static int qps_per_request(void)
{
	return (options.split ? options.qps : 1) * options.devices;
}

static int qp_of(const struct side *side, uint64_t number, int index)
{
	return (number * qps_per_request() + index) % side->qp_count;
}

static void expect_events(struct side *side, struct request *request)
{
	for (int i = 0; i < qps_per_request(); i++)
		request->events[side->own.qps[qp_of(side, request->number, i)].device]++;
}

/* Writes the credits of a request to the sender, by the first queue pair of a device. One request of
 * each round through the array is signaled, which frees the send queue. */
static void give_credits(struct receiver *receiver, struct request *request, int slot)
{
	struct side *side = &receiver->side;
	int device = request->number % options.devices;
	struct ibv_sge sge = {
		.addr = (uintptr_t)receiver->credits[slot],
		.length = request->count * sizeof(struct credit),
		.lkey = receiver->credit_mrs[device]->lkey,
	};
	struct ibv_send_wr write = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = sge.length <= receiver->max_inline ? IBV_SEND_INLINE : 0,
		.wr.rdma = {
			.remote_addr = side->peer.address + slot * sizeof receiver->credits[0],
			.rkey = side->peer.devices[side->peer.qps[device].device].rkey,
		},
	}, *bad;

	if (slot == device) {
		write.send_flags |= IBV_SEND_SIGNALED;
		write.wr_id = slot;
	}
	CHECK((errno = ibv_post_send(side->qps[device], &write, &bad)) == 0);
}

struct request *receive(struct receiver *receiver, struct buffer *buffers, int count)
{
	struct side *side = &receiver->side;
	struct request *request = new_request(side);
	int slot = side->head % REQUESTS;

	request->kind = RECEIVE;
	request->count = count;
	receiver->active[slot] = request;
	expect_events(side, request);
	for (int i = 0; i < qps_per_request() && !options.by_number; i++)
		post_empty_receive(side->qps[qp_of(side, request->number, i)], slot);
	memset(receiver->sizes[slot], 0, sizeof receiver->sizes[slot]);
	for (int i = 0; i < count; i++) {
		struct credit *credit = &receiver->credits[slot][i];

		credit->address = (uintptr_t)buffers[i].data;
		credit->length = buffers[i].size;
		for (int device = 0; device < options.devices; device++)
			credit->rkeys[device] = buffers[i].mrs[device]->rkey;
		credit->count = count;
		credit->tag = i;
		credit->number = side->head + 1;
	}
	give_credits(receiver, request, slot);
	side->head++;
	return request;
}

/* Posts the messages of a slot on each of its queue pairs: a write for each, of which the last has
 * the immediate data, or else a write of the lengths, or an empty one. */
static void post_messages(struct sender *sender, int slot)
{
	struct side *side = &sender->side;
	struct request **requests = sender->matched[slot];
	struct credit *credits = sender->credits[slot];
	int count = credits[0].count;
	int is_apart = count > 1 || (options.adaptive && requests[0]->size > ADAPTIVE_THRESHOLD);
	uint32_t offsets[RECEIVES] = { 0 };

	for (int i = 0; i < qps_per_request(); i++) {
		struct ibv_send_wr writes[RECEIVES + 1] = { 0 }, *last = &writes[count - 1 + is_apart], *bad;
		struct ibv_sge pieces[RECEIVES + 1];
		int qp = qp_of(side, requests[0]->number, i), device = side->own.qps[qp].device;
		int peer_device = side->peer.qps[qp].device;

		for (int r = 0; r < count; r++) {
			uint32_t size = requests[r]->size, part = (size + qps_per_request() - 1) / qps_per_request();

			part = (part + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
			if (part > size - offsets[r])
				part = size - offsets[r];
			pieces[r] = (struct ibv_sge) {
				.addr = (uintptr_t)requests[r]->data + offsets[r],
				.length = part,
				.lkey = requests[r]->mrs[device]->lkey,
			};
			writes[r] = (struct ibv_send_wr) {
				.wr_id = slot,
				.next = &writes[r + 1],
				.sg_list = &pieces[r],
				.num_sge = part > 0,
				.opcode = IBV_WR_RDMA_WRITE,
				.wr.rdma = {
					.remote_addr = credits[r].address + offsets[r],
					.rkey = credits[r].rkeys[peer_device] ^ sender->spoil,
				},
			};
			offsets[r] += part;
		}
		if (count > 1) {
			pieces[count] = (struct ibv_sge) {
				.addr = (uintptr_t)sender->sizes[slot],
				.length = count * sizeof(int),
				.lkey = sender->size_mrs[device]->lkey,
			};
			last->sg_list = &pieces[count];
			last->num_sge = 1;
			last->wr.rdma.remote_addr = side->peer.address + slot * sizeof sender->sizes[0];
			last->wr.rdma.rkey = side->peer.devices[peer_device].rkey;
		}
		last->wr_id = slot;
		last->next = NULL;
		last->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		last->imm_data = htonl(options.by_number ? (uint32_t)requests[0]->number : requests[0]->size);
		last->send_flags = IBV_SEND_SIGNALED;
		CHECK((errno = ibv_post_send(side->qps[qp], writes, &bad)) == 0);
	}
	for (int r = 0; r < count; r++)
		CHECK(offsets[r] == requests[r]->size);
}

struct request *send_tagged(struct sender *sender, struct buffer *buffer, uint32_t size, uint32_t tag)
{
	struct side *side = &sender->side;
	int slot = side->head % REQUESTS;
	struct credit *credits = sender->credits[slot];
	struct request *request;

	if (credits[0].number != side->head + 1)
		return NULL;
	CHECK(credits[0].count >= 1 && credits[0].count <= RECEIVES);
	for (uint32_t r = 0; r < credits[0].count; r++) {
		while (credits[r].number != side->head + 1)
			;
		if (sender->matched[slot][r] || credits[r].tag != tag)
			continue;
		CHECK(credits[r].address && credits[r].rkeys[0]);
		request = new_request(side);
		request->kind = SEND;
		request->count = credits[0].count;
		/* The receiver's buffer limits the message. */
		request->size = size < credits[r].length ? size : credits[r].length;
		request->data = buffer->data;
		request->mrs = buffer->mrs;
		expect_events(side, request);
		sender->sizes[slot][r] = request->size;
		sender->matched[slot][r] = request;
		if (++sender->matched_count[slot] == request->count) {
			post_messages(sender, slot);
			side->head++;
		}
		return request;
	}
	return NULL;
}

struct request *flush(struct receiver *receiver, struct buffer *buffer)
{
	struct side *side = &receiver->side;
	struct request *request = new_request(side);

	request->kind = FLUSH;
	for (int device = 0; device < options.devices; device++) {
		struct ibv_sge sge = {
			.addr = (uintptr_t)&receiver->flushed,
			.length = 1,
			.lkey = receiver->flush_mrs[device]->lkey,
		};
		struct ibv_send_wr read = {
			.wr_id = FLUSH_ID + (request - side->requests),
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_READ,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)buffer->data, .rkey = buffer->mrs[device]->rkey },
		}, *bad;

		CHECK((errno = ibv_post_send(receiver->flush_qps[device], &read, &bad)) == 0);
		request->events[device]++;
	}
	return request;
}

/* The queue pair of a completion. */
static struct ibv_qp *qp_numbered(struct side *side, uint32_t number)
{
	for (int i = 0; i < side->qp_count; i++) {
		if (side->qps[i]->qp_num == number)
			return side->qps[i];
	}
	fprintf(stderr, "a completion of the unknown queue pair %#x\n", number);
	exit(1);
}

static void take_sent(struct sender *sender, const struct ibv_wc *wc, int device)
{
	struct request **requests = sender->matched[wc->wr_id];

	CHECK(wc->opcode == IBV_WC_RDMA_WRITE && requests[0]);
	for (int r = 0; r < requests[0]->count; r++)
		CHECK(requests[r]->kind == SEND && requests[r]->events[device]-- > 0);
}

static void take_received(struct receiver *receiver, const struct ibv_wc *wc, int device)
{
	struct side *side = &receiver->side;
	struct request *request;
	uint32_t immediate;
	int slot;

	switch (wc->opcode) {
	case IBV_WC_RECV_RDMA_WITH_IMM:
		CHECK(wc->wc_flags & IBV_WC_WITH_IMM);
		immediate = ntohl(wc->imm_data);
		slot = options.by_number ? immediate % REQUESTS : wc->wr_id;
		request = receiver->active[slot];
		CHECK(request && request->kind == RECEIVE);
		if (options.by_number) {
			CHECK(wc->wr_id == UINT64_MAX && immediate == (uint32_t)request->number);
			post_empty_receive(qp_numbered(side, wc->qp_num), UINT64_MAX);
			/* Of one message, the pieces of all queue pairs tell the length. */
			if (request->count == 1)
				receiver->sizes[slot][0] += wc->byte_len;
		} else if (request->count == 1) {
			receiver->sizes[slot][0] = immediate;
		}
		CHECK(request->events[device]-- > 0);
		break;
	case IBV_WC_RDMA_READ:
		CHECK(wc->wr_id >= FLUSH_ID && wc->wr_id < FLUSH_ID + REQUESTS);
		request = &side->requests[wc->wr_id - FLUSH_ID];
		CHECK(request->kind == FLUSH && request->events[device]-- > 0);
		break;
	default:
		/* Of credits, those of the device's own slot. */
		CHECK(wc->opcode == IBV_WC_RDMA_WRITE && (int)wc->wr_id == device);
	}
}

static int has_events(const struct request *request)
{
	for (int device = 0; device < options.devices; device++) {
		if (request->events[device])
			return 1;
	}
	return 0;
}

/* Frees a request that is done. */
static void finish(struct side *side, struct request *request, int *sizes)
{
	int slot = request->number % REQUESTS;

	if (request->kind == RECEIVE)
		memcpy(sizes, ((struct receiver *)side)->sizes[slot], request->count * sizeof *sizes);
	if (request->kind == SEND && --((struct sender *)side)->matched_count[slot] == 0)
		memset(((struct sender *)side)->matched[slot], 0, sizeof ((struct sender *)side)->matched[slot]);
	request->kind = UNUSED;
}

int is_done(struct side *side, struct request *request, int *sizes, enum ibv_wc_status *error)
{
	struct ibv_wc completions[4];
	int count, polled;

	do {
		CHECK(error || !side->fatal);
		if (!has_events(request)) {
			finish(side, request, sizes);
			return 1;
		}
		polled = 0;
		for (int device = 0; device < options.devices; device++) {
			if (!request->events[device])
				continue;
			CHECK((count = ibv_poll_cq(side->cqs[device], 4, completions)) >= 0);
			for (int i = 0; i < count; i++) {
				if (completions[i].status != IBV_WC_SUCCESS) {
					if (error) {
						*error = completions[i].status;
						return 1;
					}
					fprintf(stderr, "completion with status %d, opcode %d, error %#x\n",
						completions[i].status, completions[i].opcode,
						completions[i].vendor_err);
					exit(1);
				}
				if (side->is_sender)
					take_sent((struct sender *)side, &completions[i], device);
				else
					take_received((struct receiver *)side, &completions[i], device);
			}
			polled += count;
		}
	} while (polled);
	return 0;
}

static void forget(struct side *side)
{
	struct ibv_wc completion;

	for (int device = 0; device < options.devices; device++) {
		while (ibv_poll_cq(side->cqs[device], 1, &completion) > 0)
			;
	}
	memset(side->requests, 0, sizeof side->requests);
	side->fatal = 0;
}

void forget_sends(struct sender *sender)
{
	forget(&sender->side);
	memset(sender->matched, 0, sizeof sender->matched);
	memset(sender->matched_count, 0, sizeof sender->matched_count);
}

void forget_receives(struct receiver *receiver)
{
	forget(&receiver->side);
	memset(receiver->active, 0, sizeof receiver->active);
}
