/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/quant_left.h"

#include "base/checked.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* One entry of the list of modules left alone. */
typedef struct left_entry {
    const char *name; /* borrows from `list`; of a pattern it is not used */
    pcre2_code *code; /* owns; of a pattern */
} left_entry;

struct mr_quant_left {
    json_t *list; /* owns */
    left_entry *items;
    size_t count;
};

void mr_quant_left_destroy(mr_quant_left *left)
{
    if (left == NULL) {
        return;
    }
    for (size_t i = 0; i < left->count; i++) {
        pcre2_code_free(left->items[i].code);
    }
    free(left->items);
    json_decref(left->list);
    free(left);
}

/* Compiles the patterns, once. One that PCRE2 cannot read matches nothing, and is left out. Each of
 * its items calls back when it is tried, for the steps to be counted. */
static void compile_left(mr_quant_left *left)
{
    size_t index;
    const json_t *item;
    json_array_foreach(left->list, index, item)
    {
        const char *name = json_string_value(item);
        left_entry entry = {.name = name};
        if (strncmp(name, "re:", 3) == 0) {
            int error;
            size_t offset;
            entry.code = pcre2_compile((PCRE2_SPTR)(name + 3), PCRE2_ZERO_TERMINATED,
                                       PCRE2_ANCHORED | PCRE2_AUTO_CALLOUT, &error, &offset, NULL);
            if (entry.code == NULL) {
                continue;
            }
        }
        left->items[left->count++] = entry;
    }
}

mr_status mr_quant_left_create(json_t *list, mr_quant_left **out)
{
    mr_quant_left *left = mr_calloc(1, sizeof(*left));
    *out = left;
    if (left == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    left->list = json_incref(list);
    left->items = mr_calloc(json_array_size(list) + 1, sizeof(*left->items));
    if (left->items == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    compile_left(left);
    return MR_OK;
}

static int count_step(pcre2_callout_block *block, void *data)
{
    (void)block;
    uint32_t *left = data;
    if (*left == 0) {
        return PCRE2_ERROR_MATCHLIMIT;
    }
    (*left)--;
    return 0;
}

/* Python's re.match: anchored at the beginning. */
static bool matches(const left_entry *entry, const char *text, pcre2_match_data *data,
                    pcre2_match_context *context)
{
    return pcre2_match(entry->code, (PCRE2_SPTR)text, strlen(text), 0, 0, data, context) >= 0;
}

static bool find_left(const mr_quant_left *left, const char *module, pcre2_match_data *data,
                      pcre2_match_context *context, uint32_t *steps)
{
    for (size_t i = 0; *steps > 0 && i < left->count; i++) {
        const left_entry *entry = &left->items[i];
        (*steps)--;
        if (entry->code != NULL ? matches(entry, module, data, context)
                                : strstr(module, entry->name) != NULL) {
            return true;
        }
    }
    return false;
}

mr_status mr_quant_left_has(const mr_quant_left *left, const char *module, bool *has, mr_error *err)
{
    uint32_t steps = MR_QUANT_LEFT_STEPS;
    mr_status status = MR_OK;
    *has = false;
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    if (data == NULL || context == NULL) {
        status = mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory to look for a module's name");
    } else {
        (void)pcre2_set_callout(context, count_step, &steps);
        *has = find_left(left, module, data, context, &steps);
        if (steps == 0 && !*has) {
            status = mr_fail(err, MR_RESOURCE_EXHAUSTED,
                             "whether '%.64s' is left alone takes more than %u steps to find out: "
                             "write shorter lists and simpler patterns",
                             module, MR_QUANT_LEFT_STEPS);
        }
    }
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    return status;
}
