/* Messages of a connection: the receiver gives credits, the sender writes. */
#ifndef TRANSFER_H
#define TRANSFER_H

#include "connect.h"

/* A buffer of one message, registered with each device. */
struct buffer {
	char *data;
	uint32_t size;
	struct ibv_mr *mrs[DEVICES];
};

/* Gives credits for `count` messages with the tags 0 and up, and returns the request. */
struct request *receive(struct receiver *receiver, struct buffer *buffers, int count);

/* Sends a message to the first credit of this tag; NULL if the sender has none yet. A request of
 * several messages goes out with the last of them. */
struct request *send_tagged(struct sender *sender, struct buffer *buffer, uint32_t size, uint32_t tag);

/* Reads a byte of a buffer by the flush queue pairs. */
struct request *flush(struct receiver *receiver, struct buffer *buffer);

/* Whether a request is done; a received one then gives the lengths of its messages. A completion
 * with an error ends the program, unless `error` points to where its status goes. */
int is_done(struct side *side, struct request *request, int *sizes, enum ibv_wc_status *error);

/* Forgets all requests, after a failure. */
void forget_sends(struct sender *sender);
void forget_receives(struct receiver *receiver);

#endif
