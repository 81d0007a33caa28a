/* The devices, and the options that stand for NCCL's variables. */
#ifndef DEVICE_H
#define DEVICE_H

#include <stdatomic.h>

#include "verbs.h"

enum { DEVICES = 4 };

/* The options, with the variables of NCCL that they stand for. */
struct options {
	int devices;        /* -d: devices of a connection (NCCL_IB_MERGE_NICS and its like) */
	int gid_index;      /* -g: NCCL_IB_GID_INDEX; -1 looks for one */
	int qps;            /* -q: NCCL_IB_QPS_PER_CONNECTION */
	int split;          /* -s: NCCL_IB_SPLIT_DATA_ON_QPS */
	int send_inline;    /* -i: NCCL_IB_USE_INLINE */
	int adaptive;       /* -a: NCCL_IB_ADAPTIVE_ROUTING */
	int strict;         /* -o: NCCL_IB_PCI_RELAXED_ORDERING=0 */
	int by_number;      /* -m: NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS, NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME */
	int traffic_class;  /* -T: NCCL_IB_TC */
	int service_level;  /* -S: NCCL_IB_SL */
	int largest;        /* -l: the largest message */
	int broken;         /* -e: ends with a wrong key */
	int port;           /* -p: the TCP port of the server */
};

extern struct options options;

struct device {
	struct ibv_context *context;
	struct ibv_port_attr attr;
	struct ibv_pd *pd;
	int pd_users;
	int gid_index;
	union ibv_gid gid;
};

extern struct device devices[DEVICES];

/* Opens the devices, and starts a thread for the events of each. */
void open_devices(void);

/* Counts the users of a device's domain: the first one allocates it, the last one frees it. */
struct ibv_pd *use_pd(struct device *device);
void release_pd(struct device *device);

#endif
