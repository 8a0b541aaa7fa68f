/* SPDX-License-Identifier: Apache-2.0 */
#include "base/inbox.h"

#include "base/clock.h"
#include "base/event.h"
#include "base/flag.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>

#define PRODUCERS 2
#define ITEMS     50000
#define NODES     16
#define NEWS      50000

static void test_order_and_emptiness(void **state)
{
    (void)state;
    mr_inbox inbox;
    mr_inbox_node nodes[3];
    mr_inbox_init(&inbox);
    assert_null(mr_inbox_take_all(&inbox));
    for (int i = 0; i < 3; i++) {
        mr_inbox_node_init(&nodes[i]);
        assert_int_equal(mr_inbox_put(&inbox, &nodes[i]), i == 0);
    }
    assert_false(mr_inbox_put(&inbox, &nodes[1]));
    mr_inbox_node *node = mr_inbox_take_all(&inbox);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(node, &nodes[i]);
        node = node->next;
    }
    assert_null(node);
    assert_null(mr_inbox_take_all(&inbox));
}

static void test_taken_node_stays_inside_until_release(void **state)
{
    (void)state;
    mr_inbox inbox;
    mr_inbox_node node;
    mr_inbox_init(&inbox);
    mr_inbox_node_init(&node);
    assert_true(mr_inbox_put(&inbox, &node));
    assert_ptr_equal(mr_inbox_take_all(&inbox), &node);
    assert_false(mr_inbox_put(&inbox, &node));
    assert_null(mr_inbox_take_all(&inbox));
    mr_inbox_release(&node);
    assert_true(mr_inbox_put(&inbox, &node));
    assert_ptr_equal(mr_inbox_take_all(&inbox), &node);
}

typedef struct item {
    mr_inbox_node node; /* first: a node is its item */
    uint32_t producer;
    uint32_t number; /* plain: handed over by the inbox alone */
} item;

typedef struct producer {
    mr_inbox *inbox;
    mr_event *wake;
    item *items; /* [ITEMS] */
} producer;

static void *put_items(void *arg)
{
    const producer *self = arg;
    for (uint32_t i = 0; i < ITEMS; i++) {
        self->items[i].number = i;
        if (mr_inbox_put(self->inbox, &self->items[i].node)) {
            mr_event_set(self->wake);
        }
    }
    return NULL;
}

static void test_stress_each_item_once_in_order(void **state)
{
    (void)state;
    mr_inbox inbox;
    mr_event wake;
    mr_inbox_init(&inbox);
    mr_event_init(&wake);
    item *items = calloc((size_t)PRODUCERS * ITEMS, sizeof(*items));
    assert_non_null(items);
    producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    for (uint32_t p = 0; p < PRODUCERS; p++) {
        producers[p] = (producer){&inbox, &wake, items + (size_t)p * ITEMS};
        for (size_t i = 0; i < ITEMS; i++) {
            mr_inbox_node_init(&producers[p].items[i].node);
            producers[p].items[i].producer = p;
        }
        assert_int_equal(pthread_create(&threads[p], NULL, put_items, &producers[p]), 0);
    }
    uint32_t expected[PRODUCERS] = {0};
    for (size_t seen = 0; seen < (size_t)PRODUCERS * ITEMS;) {
        mr_event_wait(&wake, MR_NEVER);
        mr_inbox_node *node = mr_inbox_take_all(&inbox);
        while (node != NULL) {
            const item *got = (const item *)node;
            node = node->next;
            assert_int_equal(got->number, expected[got->producer]);
            expected[got->producer]++;
            seen++;
        }
    }
    for (int p = 0; p < PRODUCERS; p++) {
        pthread_join(threads[p], NULL);
    }
    free(items);
    mr_event_deinit(&wake);
}

typedef struct topic {
    mr_inbox_node node; /* first */
    mr_counter latest;
} topic;

typedef struct announcer {
    mr_inbox *inbox;
    mr_event *wake;
    topic *topics; /* [NODES] */
} announcer;

static void *announce(void *arg)
{
    const announcer *self = arg;
    for (uint32_t i = 1; i <= NEWS; i++) {
        topic *about = &self->topics[i % NODES];
        mr_counter_set(&about->latest, i);
        if (mr_inbox_put(self->inbox, &about->node)) {
            mr_event_set(self->wake);
        }
    }
    return NULL;
}

/* The same nodes are announced over and over; the consumer must learn the last value of each,
 * although a put of a node that is inside does nothing. A lost one hangs here. */
static void test_stress_no_news_is_lost(void **state)
{
    (void)state;
    mr_inbox inbox;
    mr_event wake;
    topic topics[NODES] = {0};
    uint64_t known[NODES] = {0};
    mr_inbox_init(&inbox);
    mr_event_init(&wake);
    for (int i = 0; i < NODES; i++) {
        mr_inbox_node_init(&topics[i].node);
    }
    announcer self = {&inbox, &wake, topics};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, announce, &self), 0);
    for (int complete = 0; complete < NODES;) {
        mr_event_wait(&wake, MR_NEVER);
        mr_inbox_node *node = mr_inbox_take_all(&inbox);
        while (node != NULL) {
            topic *about = (topic *)node;
            node = node->next;
            mr_inbox_release(&about->node);
            const uint64_t latest = mr_counter_get(&about->latest);
            const size_t index = (size_t)(about - topics);
            assert_true(latest >= known[index]);
            complete += latest > NEWS - NODES && known[index] <= NEWS - NODES;
            known[index] = latest;
        }
    }
    pthread_join(thread, NULL);
    mr_event_deinit(&wake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_emptiness),
        cmocka_unit_test(test_taken_node_stays_inside_until_release),
        cmocka_unit_test(test_stress_each_item_once_in_order),
        cmocka_unit_test(test_stress_no_news_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
