/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one connection may send, in bytes, and what it sent: an account without sockets or a clock.
 *
 * It has a little from the start, and earns more by calls, by messages that came whole and by those
 * that we sent. gRPC shows no message before it is whole, so those that are coming are sent in
 * advance, many at a time where a proxy sends for many clients: the whole ones pay for themselves,
 * and what was sent for the others, once they are given up or refused, comes out of a budget that
 * is the same for all of them together and grows again slowly. What is sent beyond all that belongs
 * to nothing: floods of frames that gRPC takes without end.
 */
#ifndef MILLRACE_SERVICE_CONNECTION_ACCOUNT_H
#define MILLRACE_SERVICE_CONNECTION_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_connection_account {
    uint64_t whole;       /* bytes on the line of the largest message */
    uint64_t call;        /* of a call's headers and trailers */
    uint64_t most_ahead;  /* bytes that may be sent for messages that are coming */
    uint64_t budget_most; /* bytes: `budget` of a new connection */
    uint64_t budget;      /* that may be sent for messages that never become whole */
    uint64_t looked_ns;   /* 0: never; what the budget grows from */
    int64_t credit;       /* earned and not yet sent; negative: sent and not yet earned */
    uint64_t seen_bytes;  /* sent so far */
    uint64_t given_up;    /* bytes that may have been sent, or come yet, for messages given up */
    uint32_t receiving;   /* messages that are coming */
    uint32_t over;        /* looks in a row at which too much was sent */
} mr_connection_account;

/* `message_bytes`: of the largest message; `header_bytes`: of a call's metadata, at most. */
void mr_connection_account_init(mr_connection_account *account, uint64_t message_bytes,
                                uint64_t header_bytes);

/* A call came. */
void mr_connection_account_call(mr_connection_account *account);
/* A message of its caller, who was let in, is coming. */
void mr_connection_account_await(mr_connection_account *account);
/* A call was refused, whose message may be on its way: at most so many bytes of it. */
void mr_connection_account_refuse(mr_connection_account *account, uint64_t most_bytes);
/* It is whole. `sent_bytes`: what the connection sent so far, and so at most what a message can be
 * paid for: compressed ones are larger than that. */
void mr_connection_account_whole(mr_connection_account *account, uint64_t bytes,
                                 uint64_t sent_bytes);
/* It never will be. */
void mr_connection_account_give_up(mr_connection_account *account);
/* A message of ours is out. */
void mr_connection_account_answer(mr_connection_account *account);

/* A look at how much it has sent so far; true: far more than it had reason to. */
bool mr_connection_account_look(mr_connection_account *account, uint64_t sent_bytes,
                                uint64_t now_ns);
/* Bytes that it sent for nothing that came whole, so far or of late. */
uint64_t mr_connection_account_unearned(const mr_connection_account *account);

#endif
