/* SPDX-License-Identifier: Apache-2.0 */
/* Where filters cut, to the token, by sorting the row: the last token that should be kept must have
 * a probability afterwards and the one behind it must not; and among the kept ones the draw must
 * have the largest sum of logit and noise. */
#include "base/philox.h"
#include "sample_call.h"
#include "tiny_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Relative, of a sum of probabilities: expf of a GPU is within two units of the last place. */
#define SUM_ERROR 5e-7

static const uint32_t vocabs[] = {1, 3, 33, 1000, 4097, 16385, 20484, 50001, 151936};
static const float top_ps[] = {1.0f, 0.95f, 0.5f, 0.999f, 0.01f};
static const float min_ps[] = {0.0f, 0.05f, 0.7f};
static const float temperatures[] = {1.0f, 0.3f, 4.0f, 0.8f};

enum {
    ROWS_EACH = 3, /* of a choice of filters: the last kept token, the next one, a draw */
    CHOICES = SAMPLE_ROWS / ROWS_EACH,
    COMBINATIONS = 6 * 5 * 3, /* top_k, top_p, min_p */
    GROUPS = (COMBINATIONS + CHOICES - 1) / CHOICES,
};

typedef struct place {
    float value; /* shifted and scaled */
    uint32_t id;
} place;

static int compare(const void *x, const void *y)
{
    const place *a = x;
    const place *b = y;
    if (a->value != b->value) {
        return a->value > b->value ? -1 : 1;
    }
    return a->id < b->id ? -1 : 1;
}

/* What sampling takes the tokens for, best first. */
static void sort_row(const float *logits, uint32_t vocab, float temperature, place *sorted)
{
    float largest = -INFINITY;
    for (uint32_t v = 0; v < vocab; v++) {
        largest = fmaxf(largest, logits[v]);
    }
    for (uint32_t v = 0; v < vocab; v++) {
        sorted[v] = (place){(logits[v] - largest) / temperature, v};
    }
    qsort(sorted, vocab, sizeof(*sorted), compare);
}

/* How many tokens are kept: from `least` to `most`, which differ where rounding may decide. */
typedef struct kept {
    uint32_t least;
    uint32_t most;
} kept;

/* How many of the first `n` reach top_p of their sum. */
static kept reach(const place *sorted, uint32_t n, float top_p)
{
    double all = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        all += exp((double)sorted[i].value);
    }
    /* Sums of ones are exact. */
    const double error = sorted[n - 1].value == 0.0f ? 0.0 : SUM_ERROR * all;
    const double wanted = (double)top_p * all;
    kept k = {n, n};
    double sum = 0.0;
    for (uint32_t i = 0; i < n && k.most == n; i++) {
        sum += exp((double)sorted[i].value);
        if (k.least == n && sum >= wanted - error) {
            k.least = i + 1;
        }
        if (sum >= wanted + error) {
            k.most = i + 1;
        }
    }
    return k;
}

static kept keep(const place *sorted, uint32_t vocab, const mr_row_params *p)
{
    uint32_t n = 0;
    while (n < vocab && !isinf(sorted[n].value)) {
        n++;
    }
    assert_true(n > 0);
    if (p->top_k > 0 && p->top_k < n) {
        n = p->top_k;
    }
    kept k = p->top_p < 1.0f ? reach(sorted, n, p->top_p) : (kept){n, n};
    if (p->min_p > 0.0f) {
        uint32_t likely = 0;
        while (likely < n && (double)sorted[likely].value >= log((double)p->min_p)) {
            likely++;
        }
        k.least = likely < k.least ? likely : k.least;
        k.most = likely < k.most ? likely : k.most;
    }
    return k;
}

/* ---- a call ---- */

/* Groups of combinations have each some of everything. */
static mr_row_params filters_of(uint32_t index, uint32_t vocab)
{
    const uint32_t i = index * 37 % COMBINATIONS;
    const uint32_t top_ks[] = {0, 1, 7, vocab / 2, vocab - 1, vocab + 5};
    mr_row_params p = tiny_greedy();
    p.top_k = top_ks[i % 6];
    p.top_p = top_ps[i / 6 % 5];
    p.min_p = min_ps[i / 30];
    p.want_logprob = true;
    p.processed = true;
    p.n_top = 0;
    return p;
}

typedef struct cut_scene {
    sample_call call;
    sample_results out;
    place *sorted;
    kept kept[CHOICES];
    const sample_kind *kind;
} cut_scene;

static void make_call(uint64_t *state, uint32_t group, float temperature, cut_scene *s)
{
    sample_call *c = &s->call;
    c->count = SAMPLE_ROWS;
    sample_make_logits(state, s->kind, c->logits, c->vocab);
    for (uint32_t i = 1; i < SAMPLE_ROWS; i++) {
        memcpy(c->logits + (size_t)i * c->vocab, c->logits, c->vocab * sizeof(float));
    }
    sort_row(c->logits, c->vocab, temperature, s->sorted);
    for (uint32_t i = 0; i < CHOICES; i++) {
        mr_row_params p = filters_of(group * CHOICES + i, c->vocab);
        p.temperature = temperature;
        const kept k = s->kept[i] = keep(s->sorted, c->vocab, &p);
        p.key = tiny_random(state);
        p.position = (uint32_t)tiny_random(state) % 5000;
        for (uint32_t j = 0; j < ROWS_EACH; j++) {
            c->asked[i * ROWS_EACH + j].params = p;
        }
        mr_row_params *rows[ROWS_EACH];
        for (uint32_t j = 0; j < ROWS_EACH; j++) {
            rows[j] = &c->asked[i * ROWS_EACH + j].params;
        }
        rows[0]->target = s->sorted[k.least - 1].id;
        rows[1]->target = s->sorted[k.most < c->vocab ? k.most : 0].id;
        rows[2]->n_top = (uint8_t)(i % 4 == 0 ? MR_MAX_TOP : i % 3);
    }
}

/* ---- what came of it ---- */

static void check_draw(const cut_scene *s, kept k, uint32_t row, const char *what)
{
    const mr_row_params *p = &s->call.asked[row].params;
    const uint32_t token = s->out.tokens[row];
    float best = -INFINITY;
    float drawn = -INFINITY;
    for (uint32_t i = 0; i < k.most; i++) {
        const uint32_t v = s->sorted[i].id;
        const float x =
            s->sorted[i].value + mr_gumbel(mr_token_uniform(p->key, p->position, p->choice, v));
        best = i < k.least ? fmaxf(best, x) : best;
        drawn = v == token ? x : drawn;
    }
    /* What a GPU's logf may make of the noise. */
    if (!(drawn >= best - 1e-4f)) {
        fail_msg("%s: token %u was drawn, which has %g where another has %g", what, token,
                 (double)drawn, (double)best);
    }
    const uint32_t least = p->n_top < k.least ? p->n_top : k.least;
    const uint32_t most = p->n_top < k.most ? p->n_top : k.most;
    if (s->out.n_top[row] < least || s->out.n_top[row] > most) {
        fail_msg("%s: %u alternatives instead of %u", what, s->out.n_top[row], least);
    }
    for (uint32_t i = 0; i < s->out.n_top[row]; i++) {
        assert_int_equal(s->out.top[(size_t)row * MR_MAX_TOP + i].token, s->sorted[i].id);
    }
}

static void check_choice(const cut_scene *s, uint32_t i)
{
    char what[160];
    const uint32_t row = i * ROWS_EACH;
    const kept k = s->kept[i];
    const mr_row_params *p = &s->call.asked[row].params;
    (void)snprintf(what, sizeof(what),
                   "%u tokens, %s; temperature %g, top_k %u, top_p %g, min_p %g: %u to %u stay",
                   s->call.vocab, s->kind->what, (double)p->temperature, p->top_k, (double)p->top_p,
                   (double)p->min_p, k.least, k.most);
    for (uint32_t j = 0; j < ROWS_EACH; j++) {
        assert_int_equal(s->out.corrupt[row + j], 0);
    }
    double sum = 0.0;
    for (uint32_t n = 0; n < k.least; n++) {
        sum += exp((double)s->sorted[n].value);
    }
    const double last = (double)s->sorted[k.least - 1].value - log(sum);
    if (!(fabs((double)s->out.logprobs[row] - last) < 2e-4 * fmax(1.0, fabs(last)))) {
        fail_msg("%s: the last has a log-probability of %g instead of %g", what,
                 (double)s->out.logprobs[row], last);
    }
    if (k.most < s->call.vocab && !isinf(s->out.logprobs[row + 1])) {
        fail_msg("%s: the next has a log-probability of %g", what,
                 (double)s->out.logprobs[row + 1]);
    }
    check_draw(s, k, row + 2, what);
}

/* What takes a GPU seconds takes its emulation minutes: with MILLRACE_TEST_EVERY=N this run looks
 * at every N-th call. */
static void test_cuts_are_where_sorting_has_them_D2(void **state)
{
    (void)state;
    static cut_scene s;
    const uint32_t every = gpu_number_of("MILLRACE_TEST_EVERY", 1);
    const uint32_t from = gpu_number_of("MILLRACE_TEST_FROM", 0);
    uint32_t looked_at = 0;
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_F32, (uint64_t)64 << 20);
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof(vocabs) / sizeof(vocabs[0]); i++) {
        s.call.vocab = vocabs[i];
        s.call.logits = gpu_array((size_t)SAMPLE_ROWS * vocabs[i], sizeof(float));
        s.sorted = gpu_array(vocabs[i], sizeof(*s.sorted));
        for (uint32_t j = 0; j < sample_n_kinds * GROUPS; j++, n++) {
            s.kind = &sample_kinds[j / GROUPS];
            if (s.kind->odd != 0.0f || n % every != from % every) {
                continue;
            }
            make_call(&b.state, j % GROUPS, temperatures[n / every % 4], &s);
            sample_run(&b, &s.call, &s.out);
            for (uint32_t choice = 0; choice < CHOICES; choice++) {
                check_choice(&s, choice);
            }
            looked_at++;
        }
        free(s.call.logits);
        free(s.sorted);
    }
    print_message("%u calls of %d choices of filters\n", looked_at, CHOICES);
    assert_true(looked_at > 0);
    gpu_bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts_are_where_sorting_has_them_D2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
