/* Two processes exchange messages by the network transport for InfiniBand that NCCL's library has
 * built in. NCCL itself calls it only for GPUs, so the program looks it up among the symbols of the
 * library's file, where it is a table of functions as the plugins of version 12 have it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* The limit is in seconds: a process whose peer has failed waits for it without end. */
enum { HANDLE = 128, RECEIVES = 8, HOST_MEMORY = 1, GUARD = 64, LIMIT = 300 };

/* Several devices that are used as one. */
struct merged {
	int count, devices[8];
};

/* The functions of a network plugin, version 12; each returns 0 if it succeeds. */
struct transport {
	const char *name;
	int (*init)(void **context, uint64_t communicator, const int *traffic_class, void *log, void *profile);
	int (*devices)(int *count);
	int (*properties)(int device, void *properties);
	int (*listen)(void *context, int device, void *handle, void **listener);
	int (*connect)(void *context, int device, void *handle, void **sender, void **offload);
	int (*accept)(void *listener, void **receiver, void **offload);
	int (*reg)(void *side, void *data, size_t size, int type, void **memory);
	void *reg_dmabuf;
	int (*dereg)(void *side, void *memory);
	int (*send)(void *sender, void *data, size_t size, int tag, void *memory, void *profile, void **request);
	int (*receive)(void *receiver, int count, void **data, size_t *sizes, int *tags, void **memories,
		       void **profiles, void **request);
	int (*flush)(void *receiver, int count, void **data, int *sizes, void **memories, void **request);
	int (*test)(void *request, int *is_done, int *sizes);
	int (*close_sender)(void *sender);
	int (*close_receiver)(void *receiver);
	int (*close_listener)(void *listener);
	void *device_memory, *received;
	int (*merge)(int *device, struct merged *devices);
	int (*finish)(void *context);
};

static const struct transport *net;
static int rank;

/* The address of a symbol in a file's own table, which the dynamic loader does not read. */
static uint64_t address_of(const char *path, const char *name)
{
	int file = open(path, O_RDONLY);
	struct stat stat;
	const char *bytes;
	const Elf64_Ehdr *header;
	const Elf64_Shdr *sections;

	CHECK(file >= 0 && fstat(file, &stat) == 0);
	CHECK((bytes = mmap(NULL, stat.st_size, PROT_READ, MAP_PRIVATE, file, 0)) != MAP_FAILED);
	header = (const Elf64_Ehdr *)bytes;
	sections = (const Elf64_Shdr *)(bytes + header->e_shoff);
	for (int i = 0; i < header->e_shnum; i++) {
		const Elf64_Sym *symbols = (const Elf64_Sym *)(bytes + sections[i].sh_offset);

		if (sections[i].sh_type != SHT_SYMTAB)
			continue;
		for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++) {
			if (!strcmp(bytes + sections[sections[i].sh_link].sh_offset + symbols[s].st_name, name))
				return symbols[s].st_value;
		}
	}
	fprintf(stderr, "%s has no symbol %s\n", path, name);
	exit(1);
}

static void load(const char *path)
{
	void *library = dlopen(path, RTLD_NOW), *known;
	int (*version)(int *), number = 0;

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	CHECK(known = dlsym(library, "pncclGetVersion"));
	*(void **)&version = known;
	CHECK(version(&number) == 0);
	net = (void *)((char *)known - address_of(path, "pncclGetVersion") + address_of(path, "ncclNetIb"));
	CHECK(!strcmp(net->name, "IB"));
	if (rank == 0)
		printf("NCCL %d.%d.%d\n", number / 10000, number / 100 % 100, number % 100);
}

/* The device of a number, or all of them as one. */
static int choose_device(void)
{
	char properties[1024] = { 0 };
	struct merged merged = { 0 };
	int device = 0;

	CHECK(net->devices(&merged.count) == 0);
	if (merged.count == 0) {
		fprintf(stderr, "NCCL finds no device\n");
		exit(1);
	}
	for (int i = 0; i < merged.count; i++)
		merged.devices[i] = i;
	if (merged.count > 1)
		CHECK(net->merge(&device, &merged) == 0);
	CHECK(net->properties(device, properties) == 0);
	if (rank == 0)
		printf("device %s\n", *(char **)properties);
	return device;
}

static uint8_t byte_of(int from, uint64_t message, size_t index)
{
	uint64_t word = (message * 2 + from + 1) * 0x9e3779b97f4a7c15 + (index >> 3) * 0xbf58476d1ce4e5b9;

	return word >> (32 + (index & 7) * 4);
}

/* Messages are up to 4 bytes shorter than the receiver's buffer. */
static size_t size_of(uint64_t message, size_t size)
{
	return size - (message % 5 < size ? message % 5 : 0);
}

/* Whether a request that has begun has ended, now or before. */
static int has_ended(void **request, int *sizes)
{
	int is_done = 0;

	if (*request) {
		CHECK(net->test(*request, &is_done, sizes) == 0);
		if (is_done)
			*request = NULL;
	}
	return !*request;
}

/* A message of each buffer to the peer, and as many from it. */
static void exchange(void *sender, void *receiver, size_t size, int count, int rounds, uint64_t *next)
{
	char *sent[RECEIVES], *received[RECEIVES];
	void *sent_memory[RECEIVES], *received_memory[RECEIVES];
	size_t sizes[RECEIVES];
	int tags[RECEIVES];

	for (int i = 0; i < count; i++) {
		CHECK(sent[i] = malloc(size + GUARD));
		CHECK(received[i] = malloc(size + GUARD));
		CHECK(net->reg(sender, sent[i], size + GUARD, HOST_MEMORY, &sent_memory[i]) == 0);
		CHECK(net->reg(receiver, received[i], size + GUARD, HOST_MEMORY, &received_memory[i]) == 0);
		sizes[i] = size;
		tags[i] = i;
	}
	for (int round = 0; round < rounds; round++, *next += count) {
		void *requests[RECEIVES] = { NULL }, *receiving = NULL, *flushing = NULL;
		int lengths[RECEIVES] = { 0 };

		for (int i = 0; i < count; i++) {
			memset(received[i], 0x55, size + GUARD);
			for (size_t byte = 0; byte < size; byte++)
				sent[i][byte] = byte_of(rank, *next + i, byte);
		}
		CHECK(net->receive(receiver, count, (void **)received, sizes, tags, received_memory, NULL,
				   &receiving) == 0 && receiving);
		/* As NCCL's thread for the network does, it drives every request all the time. */
		for (int unsent = count, left = 1; left; sched_yield()) {
			if (unsent) {
				int i = unsent - 1;

				CHECK(net->send(sender, sent[i], size_of(*next + i, size), i, sent_memory[i], NULL,
						&requests[i]) == 0);
				unsent -= requests[i] != NULL;
			}
			left = unsent + !has_ended(&receiving, lengths);
			for (int i = unsent; i < count; i++)
				left += !has_ended(&requests[i], NULL);
		}
		CHECK(net->flush(receiver, count, (void **)received, lengths, received_memory, &flushing) == 0);
		while (!has_ended(&flushing, NULL))
			sched_yield();
		for (int i = 0; i < count; i++) {
			CHECK((size_t)lengths[i] == size_of(*next + i, size));
			for (int byte = 0; byte < lengths[i]; byte++)
				CHECK((uint8_t)received[i][byte] == byte_of(!rank, *next + i, byte));
			CHECK(received[i][lengths[i]] == 0x55);
		}
	}
	for (int i = 0; i < count; i++) {
		CHECK(net->dereg(sender, sent_memory[i]) == 0 && net->dereg(receiver, received_memory[i]) == 0);
		free(sent[i]);
		free(received[i]);
	}
}

/* transport LIBRARY MOST: the most messages that one request has. */
int main(int argc, char **argv)
{
	static const struct { size_t size; int count, rounds; } SHAPES[] = {
		{ 0, 1, 10 }, { 1, 1, 10 }, { 40, 1, 1000 }, { 64, 4, 100 }, { 127, 8, 100 }, { 4096, 1, 100 },
		{ 8193, 2, 50 }, { 65537, 3, 10 }, { 1 << 20, 1, 4 }, { 4 << 20, 1, 2 },
	};
	void *context = NULL, *listener, *sender = NULL, *receiver = NULL, *offload = NULL;
	char own[HANDLE] = { 0 }, handle[HANDLE], byte;
	int sockets[2], device, traffic_class = -1, status = 0;
	uint64_t messages = 0;
	pid_t child;

	CHECK(argc == 3);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	CHECK((child = fork()) >= 0);
	rank = child == 0;
	alarm(LIMIT);
	close(sockets[!rank]);
	load(argv[1]);
	CHECK(net->init(&context, 1, &traffic_class, NULL, NULL) == 0);
	device = choose_device();
	CHECK(net->listen(context, device, own, &listener) == 0);
	CHECK(write(sockets[rank], own, HANDLE) == HANDLE);
	CHECK(recv(sockets[rank], handle, HANDLE, MSG_WAITALL) == HANDLE);
	while (!sender || !receiver) {
		if (!sender)
			CHECK(net->connect(context, device, handle, &sender, &offload) == 0);
		if (!receiver)
			CHECK(net->accept(listener, &receiver, &offload) == 0);
		sched_yield();
	}
	for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
		if (SHAPES[i].count <= atoi(argv[2]))
			exchange(sender, receiver, SHAPES[i].size, SHAPES[i].count, SHAPES[i].rounds, &messages);
	}
	CHECK(write(sockets[rank], "e", 1) == 1 && read(sockets[rank], &byte, 1) == 1);
	CHECK(net->close_sender(sender) == 0 && net->close_receiver(receiver) == 0);
	CHECK(net->close_listener(listener) == 0 && net->finish(context) == 0);
	if (rank == 0) {
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		printf("%llu messages in each direction\n", (unsigned long long)messages);
	}
	return 0;
}
