/* SPDX-License-Identifier: Apache-2.0 */
#include "base/inbox.h"

void mr_inbox_init(mr_inbox *inbox)
{
    atomic_init(&inbox->head, NULL);
}

void mr_inbox_node_init(mr_inbox_node *node)
{
    node->next = NULL;
    atomic_init(&node->inside, false);
}

bool mr_inbox_put(mr_inbox *inbox, mr_inbox_node *node)
{
    /* Read-modify-write also when the node is inside: mr_inbox_release then reads this store or a
     * later one of the same chain, and so sees what was written before this call. */
    if (atomic_exchange_explicit(&node->inside, true, memory_order_acq_rel)) {
        return false;
    }
    mr_inbox_node *head = atomic_load_explicit(&inbox->head, memory_order_relaxed);
    do {
        node->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&inbox->head, &head, node, memory_order_release,
                                                    memory_order_relaxed));
    return head == NULL;
}

mr_inbox_node *mr_inbox_take_all(mr_inbox *inbox)
{
    mr_inbox_node *node = atomic_exchange_explicit(&inbox->head, NULL, memory_order_acquire);
    mr_inbox_node *oldest = NULL;
    while (node != NULL) {
        mr_inbox_node *older = node->next;
        node->next = oldest;
        oldest = node;
        node = older;
    }
    return oldest;
}

void mr_inbox_release(mr_inbox_node *node)
{
    atomic_exchange_explicit(&node->inside, false, memory_order_acq_rel);
}
