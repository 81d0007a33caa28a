/* Two processes exchange messages as NCCL's network plugin for InfiniBand does: it loads libibverbs
 * at run time, and connects and sends by the calls of these files, in both directions. It takes no
 * GPU, and NCCL itself is not needed. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transfer.h"

/* The most requests under way at a time, which is NCCL's own limit. */
enum { DEPTH = 32 };

struct options options = { .devices = 1, .gid_index = -1, .qps = 1, .largest = 4 << 20 };

/* Requests of `count` messages of up to `size` bytes, `depth` at a time, `rounds` times. */
struct shape {
	uint32_t size;
	int count, depth, rounds;
};

static const struct shape SHAPES[] = {
	{ 0, 1, 4, 2 },
	{ 0, 3, 4, 2 },
	{ 1, 1, 1, 20 },
	/* More requests than the arrays and the send queues have slots. */
	{ 40, 1, DEPTH, 40 },
	{ 127, 8, 16, 8 },
	{ 129, 5, 8, 8 },
	{ 4096, 1, DEPTH, 8 },
	{ 8192, 2, 8, 4 },
	{ 8193, 1, 8, 4 },
	{ 65537, 4, 4, 4 },
	{ 1 << 20, 1, 8, 2 },
	{ 4 << 20, 2, 1, 2 },
};

/* Memory behind a message that must stay as it is. */
enum { GUARD = 64 };

static int is_server;

/* The number of a message that this process sends or gets. */
static uint64_t seed_of(int from_server, uint64_t request, int tag)
{
	return ((request * RECEIVES + tag) * 2 + from_server + 1) * 0x9e3779b97f4a7c15;
}

static uint64_t next_word(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	return *seed ^= *seed << 17;
}

/* The length that the sender gives, which may be longer than the buffer of the receiver. */
static uint32_t size_of(uint32_t size, uint64_t request, int tag)
{
	static const uint32_t LESS[] = { 0, 1, 0, 63, 127, 128 };
	uint32_t less = LESS[(request + tag) % (sizeof LESS / sizeof *LESS)];

	return (request + tag) % 5 == 0 ? size + GUARD : size - (less < size ? less : 0);
}

static void fill(char *data, uint32_t size, uint64_t seed)
{
	for (uint32_t i = 0; i < size; i += 8) {
		uint64_t word = next_word(&seed);

		memcpy(data + i, &word, size - i < 8 ? size - i : 8);
	}
}

static void check_contents(const char *data, uint32_t size, uint64_t seed)
{
	for (uint32_t i = 0; i < size; i += 8) {
		uint64_t word = next_word(&seed);

		if (memcmp(data + i, &word, size - i < 8 ? size - i : 8)) {
			fprintf(stderr, "wrong contents at %u of %u bytes\n", i, size);
			exit(1);
		}
	}
}

/* Registers whole pages around memory, with relaxed ordering if the library has the function. */
static void register_memory(struct buffer *buffer)
{
	uintptr_t page = sysconf(_SC_PAGESIZE), start = (uintptr_t)buffer->data & -page;
	size_t length = ((uintptr_t)buffer->data + buffer->size + GUARD - start + page - 1) & -page;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC;

	for (int device = 0; device < options.devices; device++) {
		struct ibv_pd *pd = devices[device].pd;

		if (verbs.reg_mr_iova2 && !options.strict)
			buffer->mrs[device] = verbs.reg_mr_iova2(pd, (void *)start, length, start,
								 access | IBV_ACCESS_RELAXED_ORDERING);
		else
			buffer->mrs[device] = verbs.reg_mr(pd, (void *)start, length, access);
		CHECK(buffer->mrs[device]);
	}
}

/* Buffers of a shape, side by side and not aligned. */
static struct buffer *new_buffers(const struct shape *shape)
{
	int count = shape->depth * shape->count;
	struct buffer *buffers = calloc(count, sizeof *buffers);

	CHECK(buffers);
	for (int i = 0; i < count; i++) {
		CHECK(buffers[i].data = malloc(shape->size + GUARD));
		buffers[i].size = shape->size;
		register_memory(&buffers[i]);
	}
	return buffers;
}

static void free_buffers(struct buffer *buffers, const struct shape *shape)
{
	for (int i = 0; i < shape->depth * shape->count; i++) {
		for (int device = 0; device < options.devices; device++)
			CHECK((errno = verbs.dereg_mr(buffers[i].mrs[device])) == 0);
		free(buffers[i].data);
	}
	free(buffers);
}

/* Checks what has come, and flushes the last message that is not empty. */
static void check_request(struct receiver *receiver, struct buffer *buffers, int count, const int *sizes,
			  uint64_t number)
{
	struct request *flushed = NULL;

	for (int tag = count - 1; tag >= 0 && !flushed; tag--) {
		if (sizes[tag])
			flushed = flush(receiver, &buffers[tag]);
	}
	while (flushed && !is_done(&receiver->side, flushed, NULL, NULL))
		sched_yield();
	for (int tag = 0; tag < count; tag++) {
		uint32_t size = size_of(buffers[tag].size, number, tag);

		size = size < buffers[tag].size ? size : buffers[tag].size;
		if ((uint32_t)sizes[tag] != size) {
			fprintf(stderr, "a message of %u bytes has the length %d\n", size, sizes[tag]);
			exit(1);
		}
		check_contents(buffers[tag].data, size, seed_of(!is_server, number, tag));
		for (uint32_t i = size; i < buffers[tag].size + GUARD; i++)
			CHECK(buffers[tag].data[i] == 0x55);
	}
}

/* One round of a shape: all receives, then all sends, then completions in the order of their
 * start. */
static void round_of(struct sender *sender, struct receiver *receiver, const struct shape *shape,
		     struct buffer *sent, struct buffer *received)
{
	struct request *sends[DEPTH][RECEIVES], *receives[DEPTH];
	uint64_t first = receiver->side.head;
	int count = shape->count, sizes[RECEIVES];

	CHECK(sender->side.head == first);
	for (int i = 0; i < shape->depth; i++) {
		for (int tag = 0; tag < count; tag++)
			memset(received[i * count + tag].data, 0x55, shape->size + GUARD);
		receives[i] = receive(receiver, &received[i * count], count);
	}
	for (int i = 0; i < shape->depth; i++) {
		/* The order of tags is the sender's own. */
		for (int tag = count - 1; tag >= 0; tag--) {
			struct buffer *buffer = &sent[i * count + tag];
			uint32_t size = size_of(shape->size, first + i, tag);

			fill(buffer->data, size, seed_of(is_server, first + i, tag));
			while (!(sends[i][tag] = send_tagged(sender, buffer, size, tag)))
				sched_yield();
		}
	}
	for (int i = 0; i < shape->depth; i++) {
		for (int tag = 0; tag < count; tag++) {
			while (!is_done(&sender->side, sends[i][tag], NULL, NULL))
				sched_yield();
		}
		while (!is_done(&receiver->side, receives[i], sizes, NULL))
			sched_yield();
		check_request(receiver, &received[i * count], count, sizes, first + i);
	}
}

/* Returns the bytes that each direction has carried, at most. */
static uint64_t exchange(struct sender *sender, struct receiver *receiver, const struct shape *shape)
{
	struct buffer *sent = new_buffers(shape), *received = new_buffers(shape);

	for (int i = 0; i < shape->rounds; i++)
		round_of(sender, receiver, shape, sent, received);
	free_buffers(sent, shape);
	free_buffers(received, shape);
	return (uint64_t)shape->size * shape->count * shape->depth * shape->rounds;
}

/* Both processes have come here. */
static void meet(int socket)
{
	char byte;

	tell(socket, "m", 1);
	hear(socket, &byte, 1);
}

static void check_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK((errno = verbs.query_qp(qp, &attr, IBV_QP_STATE, &init)) == 0);
	CHECK(attr.qp_state == state);
}

/* Sends a message with a wrong key in both directions. The receiver hears of it by an event, and its
 * receives are flushed; the sender's write completes with an error. Then the queue pairs work
 * again. */
static void fail_and_recover(struct sender *sender, struct receiver *receiver, int socket)
{
	static const struct shape ONE = { 1000, 1, 1, 1 };
	struct buffer *sent = new_buffers(&ONE), *received = new_buffers(&ONE);
	struct request *receiving = receive(receiver, received, 1), *sending;
	enum ibv_wc_status status = IBV_WC_SUCCESS;

	memset(received[0].data, 0x55, ONE.size + GUARD);
	sender->spoil = 0x5500;
	while (!(sending = send_tagged(sender, sent, ONE.size, 0)))
		sched_yield();
	sender->spoil = 0;
	while (!is_done(&sender->side, sending, NULL, &status))
		sched_yield();
	CHECK(status == IBV_WC_REM_ACCESS_ERR);
	check_state(sender->side.qps[0], IBV_QPS_ERR);
	while (!receiver->side.fatal)
		sched_yield();
	while (!is_done(&receiver->side, receiving, NULL, &status))
		sched_yield();
	CHECK(status == IBV_WC_WR_FLUSH_ERR);
	check_state(receiver->side.qps[0], IBV_QPS_ERR);
	for (uint32_t i = 0; i < ONE.size + GUARD; i++)
		CHECK(received[0].data[i] == 0x55);
	/* The requester is told by its completion alone, and the responder by one event. */
	CHECK(sender->side.fatal == 0 && receiver->side.fatal == 1);

	/* A queue pair that is reset takes nothing from a peer that is not, so both are reset before
	 * the first of them sends. */
	meet(socket);
	reset_qps(&sender->side);
	reset_qps(&receiver->side);
	forget_sends(sender);
	forget_receives(receiver);
	meet(socket);
	restart_sender(sender);
	restart_receiver(receiver);
	meet(socket);
	free_buffers(sent, &ONE);
	free_buffers(received, &ONE);
}

/* Connects two sockets to the server at a loopback address, or accepts them. */
static void meet_at(const char *host, int sockets[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(options.port) };
	int listener, yes = 1;

	CHECK(inet_pton(AF_INET, host ? host : "127.0.0.1", &address.sin_addr) == 1);
	CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	if (host) {
		close(listener);
		for (int i = 0; i < 2; i++) {
			CHECK((sockets[i] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
			CHECK(connect(sockets[i], (struct sockaddr *)&address, sizeof address) == 0);
		}
		return;
	}
	CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 2) == 0);
	for (int i = 0; i < 2; i++)
		CHECK((sockets[i] = accept(listener, NULL, NULL)) >= 0);
	close(listener);
}

static void parse(int argc, char **argv)
{
	int letter;

	while ((letter = getopt(argc, argv, "d:g:q:siaomT:S:l:ep:")) != -1) {
		int value = optarg ? atoi(optarg) : 1;

		switch (letter) {
		case 'd': options.devices = value; break;
		case 'g': options.gid_index = value; break;
		case 'q': options.qps = value; break;
		case 's': options.split = 1; break;
		case 'i': options.send_inline = 1; break;
		case 'a': options.adaptive = 1; break;
		case 'o': options.strict = 1; break;
		case 'm': options.by_number = 1; break;
		case 'T': options.traffic_class = value; break;
		case 'S': options.service_level = value; break;
		case 'l': options.largest = value; break;
		case 'e': options.broken = 1; break;
		case 'p': options.port = value; break;
		default: exit(2);
		}
	}
	CHECK(options.port && options.devices >= 1 && options.devices <= DEVICES && options.qps >= 1);
	/* The one queue pair that fails is the only one. */
	CHECK(!options.broken || options.devices * options.qps == 1);
}

int main(int argc, char **argv)
{
	struct receiver *receiver;
	struct sender *sender;
	uint64_t bytes = 0, requests;
	int sockets[2], symbols;

	parse(argc, argv);
	is_server = !argv[optind];
	symbols = load_verbs();
	open_devices();
	meet_at(argv[optind], sockets);
	/* The first socket's connection goes from the client to the server, the second one's back. */
	if (is_server) {
		receiver = accept_receiver(sockets[0]);
		sender = connect_sender(sockets[1]);
	} else {
		sender = connect_sender(sockets[0]);
		receiver = accept_receiver(sockets[1]);
	}
	for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
		if ((int)SHAPES[i].size <= options.largest)
			bytes += exchange(sender, receiver, &SHAPES[i]);
	}
	if (options.broken) {
		fail_and_recover(sender, receiver, sockets[0]);
		bytes += exchange(sender, receiver, &SHAPES[3]);
	}
	/* A side destroys its queue pairs once its peer has all that it waits for. */
	meet(sockets[0]);
	requests = sender->side.head;
	close_sender(sender);
	close_receiver(receiver);
	printf("%d symbols, %d queue pairs, GID %d, %llu requests and %llu bytes in each direction\n", symbols,
	       options.qps * options.devices, devices[0].gid_index, (unsigned long long)requests,
	       (unsigned long long)bytes);
	return 0;
}
