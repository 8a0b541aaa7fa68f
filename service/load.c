/* SPDX-License-Identifier: Apache-2.0 */
#include "service/load.h"

#include "base/clock.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>

/* Last word of the counter: which of a seed's streams. */
enum {
    DRAW_ARRIVAL = 1,
    DRAW_PROMPT = 2,
    DRAW_LENGTHS = 3,
};

static void draw(uint64_t seed, uint64_t index, uint32_t step, uint32_t stream, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), step, stream};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    mr_philox4x32(counter, key, out);
}

void mr_load_arrivals_init(mr_load_arrivals *arrivals, uint64_t seed, double rate)
{
    *arrivals = (mr_load_arrivals){.seed = seed, .rate = rate};
}

uint64_t mr_load_arrivals_next(mr_load_arrivals *arrivals)
{
    if (arrivals->index > 0) {
        uint32_t word[4];
        draw(arrivals->seed, arrivals->index, 0, DRAW_ARRIVAL, word);
        arrivals->at_s -= log((double)mr_uniform(word[0])) / arrivals->rate;
    }
    arrivals->index++;
    const double ns = arrivals->at_s * (double)MR_NS_PER_S;
    return ns < (double)INT64_MAX ? (uint64_t)ns : (uint64_t)INT64_MAX;
}

void mr_load_prompt(uint64_t seed, uint64_t index, uint32_t vocab_size, uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t word[4];
        draw(seed, index, i, DRAW_PROMPT, word);
        ids[i] = (uint32_t)(((uint64_t)word[0] * vocab_size) >> 32);
    }
}

static uint32_t in_range(mr_load_range range, uint32_t word)
{
    const uint64_t count = (uint64_t)range.most - range.least + 1;
    return range.least + (uint32_t)((word * count) >> 32);
}

mr_load_lengths mr_load_lengths_of(uint64_t seed, uint64_t index, mr_load_range prompt,
                                   mr_load_range output)
{
    uint32_t word[4];
    draw(seed, index, 0, DRAW_LENGTHS, word);
    return (mr_load_lengths){.prompt = in_range(prompt, word[0]),
                             .output = in_range(output, word[1])};
}

mr_status mr_load_samples_add(mr_load_samples *samples, uint64_t ns, uint32_t times)
{
    const uint64_t us = ns / 1000;
    for (uint32_t i = 0; i < times; i++) {
        MR_TRY(mr_ids_push(&samples->us, us < UINT32_MAX ? (uint32_t)us : UINT32_MAX));
    }
    return MR_OK;
}

static int compare(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a;
    const uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* `sorted` is not empty. */
static double percentile_ms(const mr_ids *sorted, size_t percent)
{
    const size_t rank = (sorted->count * percent + 99) / 100;
    return (double)sorted->data[rank - 1] / 1e3;
}

mr_load_summary mr_load_samples_sum_up(mr_load_samples *samples)
{
    const mr_ids *us = &samples->us;
    mr_load_summary summary = {.count = us->count};
    if (us->count == 0) {
        return summary;
    }
    qsort(us->data, us->count, sizeof(us->data[0]), compare);
    double sum = 0.0;
    for (size_t i = 0; i < us->count; i++) {
        sum += (double)us->data[i];
    }
    summary.p50 = percentile_ms(us, 50);
    summary.p90 = percentile_ms(us, 90);
    summary.p99 = percentile_ms(us, 99);
    summary.mean = sum / (double)us->count / 1e3;
    summary.max = (double)us->data[us->count - 1] / 1e3;
    return summary;
}

void mr_load_samples_deinit(mr_load_samples *samples)
{
    mr_ids_deinit(&samples->us);
}
