/* A forked child opens a device of its own; what it inherits from its parent fails with ENODEV. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "check.h"

/* Exported, but declared only by the headers of drivers. */
const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static char memory[4096];

struct opened {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
};

static struct opened open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct opened opened;

	CHECK(list && *list);
	CHECK(opened.context = ibv_open_device(*list));
	ibv_free_device_list(list);
	CHECK(opened.pd = ibv_alloc_pd(opened.context));
	CHECK(opened.mr = ibv_reg_mr(opened.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
	return opened;
}

static void close_all(const struct opened *opened)
{
	CHECK(ibv_dereg_mr(opened->mr) == 0);
	CHECK(ibv_dealloc_pd(opened->pd) == 0);
	CHECK(ibv_close_device(opened->context) == 0);
}

static void read_sysfs(const struct ibv_device *device)
{
	char text[16];

	CHECK(strcmp(ibv_get_sysfs_path(), "/sys") == 0);
	CHECK(ibv_read_sysfs_file(device->ibdev_path, "hca_type", text, sizeof text) > 0);
	CHECK(strcmp(text, "rdma-soft") == 0);
	CHECK(ibv_read_sysfs_file(device->ibdev_path, "no_such_file", text, sizeof text) == -1);
}

int main(void)
{
	struct opened parent;
	pid_t child;
	int status;

	CHECK(ibv_fork_init() == 0);
	CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	parent = open_first();
	read_sysfs(parent.context->device);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct opened own;

		CHECK(ibv_alloc_pd(parent.context) == NULL && errno == ENODEV);
		CHECK(ibv_dereg_mr(parent.mr) == ENODEV);
		own = open_first();
		close_all(&own);
		return 0;
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	close_all(&parent);
	puts("ok");
	return 0;
}
