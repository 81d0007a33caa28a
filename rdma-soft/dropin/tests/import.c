/* A context, its domain and its region are imported within the process; a child of it cannot. */
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "check.h"

enum { SIZE = 64 };

static char target[SIZE], source[SIZE] = "written through an imported region";

/* A context with a domain and a region. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct side open_side(void)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct side side;

	CHECK(list && *list);
	CHECK(side.context = ibv_open_device(*list));
	ibv_free_device_list(list);
	CHECK(side.pd = ibv_alloc_pd(side.context));
	CHECK(side.mr = ibv_reg_mr(side.pd, target, SIZE, access));
	return side;
}

static struct side import_side(const struct side *from)
{
	struct side side;
	int fd = dup(from->context->cmd_fd);

	CHECK(fd >= 0);
	CHECK(side.context = ibv_import_device(fd));
	CHECK(side.context->cmd_fd == fd && side.context->device == from->context->device);
	CHECK(side.pd = ibv_import_pd(side.context, from->pd->handle));
	CHECK(side.pd->handle == from->pd->handle && side.pd->context == side.context);
	CHECK(side.mr = ibv_import_mr(side.pd, from->mr->handle));
	CHECK(side.mr->addr == NULL && side.mr->length == SIZE && side.mr->pd == side.pd);
	CHECK(side.mr->lkey == from->mr->lkey && side.mr->rkey == from->mr->rkey);
	return side;
}

static void create_queues(struct side *side)
{
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 1, .max_send_sge = 1 }, .qp_type = IBV_QPT_RC };

	CHECK(side->cq = ibv_create_cq(side->context, 2, NULL, NULL, 0));
	init.send_cq = init.recv_cq = side->cq;
	CHECK(side->qp = ibv_create_qp(side->pd, &init));
}

static void connect_to(const struct side *side, const struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1 },
		.timeout = 14,
		.retry_cnt = 7,
	};

	CHECK(ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	CHECK(ibv_query_gid(side->context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* Writes from a region of its own to the other side's. */
static void write_to(const struct side *side, uint32_t rkey)
{
	struct ibv_mr *mr = ibv_reg_mr(side->pd, source, SIZE, 0);
	struct ibv_sge sge = { .addr = (uintptr_t)source, .length = SIZE };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)target, .rkey = rkey },
	};
	struct ibv_wc wc;
	int count;

	CHECK(mr);
	sge.lkey = mr->lkey;
	CHECK(ibv_post_send(side->qp, &wr, &bad) == 0);
	while (!(count = ibv_poll_cq(side->cq, 1, &wc)))
		;
	CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(mr) == 0);
}

static void destroy_queues(const struct side *side)
{
	CHECK(ibv_destroy_qp(side->qp) == 0);
	CHECK(ibv_destroy_cq(side->cq) == 0);
}

/* Imported objects work as the ones they stand for, which live on without them. */
static void share(struct side *own)
{
	struct side imported = import_side(own);

	create_queues(own);
	create_queues(&imported);
	connect_to(own, imported.qp);
	connect_to(&imported, own->qp);
	write_to(own, imported.mr->rkey);
	CHECK(!strcmp(target, source));
	CHECK(ibv_dealloc_pd(imported.pd) == EBUSY);
	destroy_queues(&imported);
	destroy_queues(own);
	ibv_unimport_mr(imported.mr);
	ibv_unimport_pd(imported.pd);
	CHECK(ibv_close_device(imported.context) == 0);
	/* These are not imported: nothing happens. */
	ibv_unimport_mr(own->mr);
	ibv_unimport_pd(own->pd);
	CHECK(own->mr->length == SIZE && own->pd->context == own->context);
}

/* Once the owner has destroyed an object, the imported ones fail. */
static void outlive(void)
{
	struct side own = open_side(), imported = import_side(&own);
	struct ibv_pd *next;

	CHECK(ibv_dereg_mr(own.mr) == 0);
	CHECK(ibv_dereg_mr(imported.mr) == EINVAL);
	CHECK(ibv_import_mr(imported.pd, imported.mr->handle) == NULL && errno == ENOENT);
	CHECK(ibv_dealloc_pd(own.pd) == 0);
	/* The domain's number may be that of another domain by now. */
	CHECK(next = ibv_alloc_pd(own.context));
	CHECK(ibv_reg_mr(imported.pd, target, SIZE, 0) == NULL && errno == EINVAL);
	CHECK(ibv_dealloc_pd(imported.pd) == EINVAL);
	CHECK(ibv_dealloc_pd(next) == 0);
	CHECK(ibv_close_device(own.context) == 0);
	ibv_unimport_mr(imported.mr);
	ibv_unimport_pd(imported.pd);
	CHECK(ibv_import_pd(imported.context, 0xffff) == NULL && errno == ENOENT);
	CHECK(ibv_close_device(imported.context) == 0);
}

static void refuse(const struct side *own)
{
	struct side other = open_side();
	int ends[2], fd = dup(other.context->cmd_fd);

	CHECK(pipe(ends) == 0);
	CHECK(ibv_import_device(-1) == NULL && errno == EINVAL);
	CHECK(ibv_import_device(ends[0]) == NULL && errno == EINVAL);
	CHECK(ibv_import_device(own->context->cmd_fd) == NULL && errno == EINVAL);
	/* Another context has handles of its own. */
	CHECK(ibv_import_pd(other.context, own->pd->handle) == NULL && errno == ENOENT);
	CHECK(ibv_import_mr(other.pd, own->mr->handle) == NULL && errno == ENOENT);
	CHECK(ibv_import_dm(own->context, 0) == NULL && errno == EOPNOTSUPP);
	CHECK(ibv_dereg_mr(other.mr) == 0);
	CHECK(ibv_dealloc_pd(other.pd) == 0);
	CHECK(ibv_close_device(other.context) == 0);
	CHECK(ibv_import_device(fd) == NULL && errno == EOPNOTSUPP);
	CHECK(close(fd) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* An import that fails leaves the descriptor to the program. */
static void fail_without_descriptors(const struct side *own)
{
	int fd = dup(own->context->cmd_fd);
	struct rlimit before, none;

	CHECK(fd >= 0);
	CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
	none = before;
	none.rlim_cur = 0;
	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	CHECK(!ibv_import_device(fd) && errno == EMFILE);
	CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
	CHECK(close(fd) == 0);
}

/* The parent's memory holds its objects. */
static void fork_child(const struct side *own)
{
	int status, fd = dup(own->context->cmd_fd);
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		CHECK(ibv_import_device(fd) == NULL && errno == EOPNOTSUPP);
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(close(fd) == 0);
}

int main(void)
{
	struct side own = open_side();

	share(&own);
	outlive();
	refuse(&own);
	fail_without_descriptors(&own);
	fork_child(&own);
	CHECK(ibv_dereg_mr(own.mr) == 0);
	CHECK(ibv_dealloc_pd(own.pd) == 0);
	CHECK(ibv_close_device(own.context) == 0);
	puts("ok");
	return 0;
}
