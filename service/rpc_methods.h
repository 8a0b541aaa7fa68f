/* SPDX-License-Identifier: Apache-2.0 */
/* The table of methods. Each is a constant of the file that serves it, rpc_*.c. */
#ifndef MILLRACE_SERVICE_RPC_METHODS_H
#define MILLRACE_SERVICE_RPC_METHODS_H

#define MR_RPC_METHODS 17

typedef struct mr_call mr_call;

/* Where a method is served. */
typedef enum mr_rpc_port {
    MR_RPC_MAIN,
    MR_RPC_PROBES, /* plaintext, nothing but grpc.health.v1, and open to everybody */
    MR_RPC_PORTS,
} mr_rpc_port;

/* A method this build serves. Hooks run on the call's thread; NULL: nothing to do. */
typedef struct mr_rpc_method {
    const char *path; /* NULL: any method without an entry of its own */
    mr_rpc_port port;
    /* The call is new, its request is in `payload`. */
    void (*begin)(mr_call *call);
    /* A message is out, another may follow. Not once the status was given. */
    void (*resume)(mr_call *call);
    /* What mr_call_receive() waited for is in `payload`; NULL: the client sends no more. */
    void (*received)(mr_call *call);
    /* The client cancelled, left, or ran out of time. */
    void (*cancelled)(mr_call *call);
    void (*tick)(mr_call *call);
    /* Frees call->state. */
    void (*release)(mr_call *call);
} mr_rpc_method;

extern const mr_rpc_method mr_rpc_generate;
extern const mr_rpc_method mr_rpc_generate_unary;
extern const mr_rpc_method mr_rpc_abort;
extern const mr_rpc_method mr_rpc_tokenize;
extern const mr_rpc_method mr_rpc_detokenize;
extern const mr_rpc_method mr_rpc_get_model;
extern const mr_rpc_method mr_rpc_health_check;
extern const mr_rpc_method mr_rpc_health_watch;
extern const mr_rpc_method mr_rpc_reflection;
extern const mr_rpc_method mr_rpc_reflection_alpha;
extern const mr_rpc_method mr_rpc_get_load;
extern const mr_rpc_method mr_rpc_reset_prefix_cache;
extern const mr_rpc_method mr_rpc_drain;
extern const mr_rpc_method mr_rpc_other;
extern const mr_rpc_method mr_rpc_probe_check;
extern const mr_rpc_method mr_rpc_probe_watch;
extern const mr_rpc_method mr_rpc_probe_other;

/* All of them. What is kept a method elsewhere is in this order. */
extern const mr_rpc_method *const mr_rpc_methods[MR_RPC_METHODS];

#endif
