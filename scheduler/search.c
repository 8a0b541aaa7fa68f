/* SPDX-License-Identifier: Apache-2.0 */
/* Beam search on a group's sequences; beam.h has the rules. */
#include "scheduler/internal.h"

#include <string.h>

/* Tokens that a hypothesis may have. */
static uint32_t max_generated(const mr_scheduler *s, const mr_request *request)
{
    const uint32_t room = s->options.max_seq_length - request->n_prompt;
    return request->params.max_tokens < room ? request->params.max_tokens : room;
}

static void collect(const mr_scheduler *s, mr_group *group, const mr_step_output *output,
                    uint32_t first_row)
{
    mr_beams *beams = group->beams;
    const uint32_t rows = beams->n_live > 0 ? beams->n_live : 1;
    beams->n_candidates = 0;
    for (uint32_t i = 0; i < rows; i++) {
        const mr_alternative *top = output->top + (size_t)(first_row + i) * MR_MAX_TOP;
        for (uint32_t k = 0; k < output->n_top[first_row + i]; k++) {
            const mr_candidate candidate = {
                .cumulative = group->sequences[i].cumulative + (double)top[k].logprob,
                .logprob = top[k].logprob,
                .token = top[k].token,
                .beam = i,
            };
            if (candidate.token < s->options.vocab_size) {
                mr_beams_offer(beams, &candidate);
            }
        }
    }
}

/* Puts a beam with a token more (or, with MR_NO_TOKEN, as it is) into the pool if it is good
 * enough. */
static void finish_beam(mr_beams *beams, const mr_sequence *beam, const mr_candidate *candidate,
                        const mr_verdict *verdict)
{
    const uint32_t before = mr_sequence_generated(beam);
    const uint32_t tokens = before + (candidate->token != MR_NO_TOKEN);
    const double score = mr_beams_score(beams, candidate->cumulative, tokens);
    mr_hypothesis *h = mr_beams_place(beams, score);
    if (h == NULL) {
        return;
    }
    memcpy(h->tokens, beam->tokens + beam->request->n_prompt, before * sizeof(*h->tokens));
    memcpy(h->logprobs, beam->logprobs, before * sizeof(*h->logprobs));
    if (candidate->token != MR_NO_TOKEN) {
        h->tokens[before] = candidate->token;
        h->logprobs[before] = candidate->logprob;
    }
    h->score = score;
    h->cumulative = candidate->cumulative;
    h->n_tokens = tokens;
    h->matched_token = verdict->matched_token;
    h->matched_stop = verdict->matched_stop;
    h->text_bytes = verdict->text_bytes;
    h->finish = verdict->finish;
}

/* Looks at the candidates, best first: ends go to the pool, the others into `next`, which has room
 * for one a beam. Gives their number. */
static uint32_t choose(mr_scheduler *s, mr_group *group, const mr_candidate **next,
                       mr_text_state *texts)
{
    mr_beams *beams = group->beams;
    uint32_t n_next = 0;
    uint32_t taken = 0; /* places of live beams, those that end by their length too */
    for (uint32_t rank = 0; rank < beams->n_candidates && taken < beams->width; rank++) {
        const mr_candidate *candidate = &beams->candidates[rank];
        const mr_sequence *beam = &group->sequences[candidate->beam];
        mr_text_state text = beam->text;
        mr_verdict verdict;
        mr_scheduler_judge(s, group->request, mr_sequence_generated(beam), candidate->token, &text,
                           &verdict);
        if (verdict.finish == MR_FINISH_STOP) {
            if (rank < beams->width) {
                finish_beam(beams, beam, candidate, &verdict);
            }
            continue;
        }
        taken++;
        if (verdict.finish == MR_FINISH_LENGTH) {
            finish_beam(beams, beam, candidate, &verdict);
        } else {
            texts[n_next] = text;
            next[n_next++] = candidate;
        }
    }
    return n_next;
}

/* What makes two beams differ changes places: tokens, slots, blocks. */
static void swap_beams(mr_sequence *a, mr_sequence *b)
{
    const mr_sequence was = *a;
    *a = *b;
    a->ticket = was.ticket;
    a->choice = was.choice;
    a->state = was.state;
    a->preemptions = was.preemptions;
    a->keeps = was.keeps;
    const mr_sequence place = *b;
    *b = was;
    b->ticket = place.ticket;
    b->choice = place.choice;
    b->state = place.state;
    b->preemptions = place.preemptions;
    b->keeps = place.keeps;
}

/* Moves the beams that go on to places below n_next, where the live ones are. */
static void gather_parents(mr_group *group, uint32_t *parents, uint32_t n_next, uint32_t n_before)
{
    bool goes_on[MR_MAX_BEAMS] = {false};
    for (uint32_t i = 0; i < n_next; i++) {
        goes_on[parents[i]] = true;
    }
    uint32_t low = 0;
    for (uint32_t p = n_next; p < n_before; p++) {
        if (!goes_on[p]) {
            continue;
        }
        while (goes_on[low]) {
            low++;
        }
        swap_beams(&group->sequences[low], &group->sequences[p]);
        goes_on[low] = true;
        for (uint32_t i = 0; i < n_next; i++) {
            parents[i] = parents[i] == p ? low : parents[i];
        }
    }
}

/* Which beam each of the next ones becomes: the first of a parent's takes its place, the others
 * those that are left below n_next. */
static void assign(const uint32_t *parents, uint32_t n_next, uint32_t *targets)
{
    bool used[MR_MAX_BEAMS] = {false};
    for (uint32_t i = 0; i < n_next; i++) {
        const bool first = !used[parents[i]];
        used[parents[i]] = true;
        targets[i] = first ? parents[i] : MR_MAX_BEAMS;
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < n_next; i++) {
        if (targets[i] == MR_MAX_BEAMS) {
            while (used[at]) {
                at++;
            }
            used[at] = true;
            targets[i] = at;
        }
    }
}

/* Makes the chosen candidates the live beams. Copies come first: they read the parents as they
 * were. */
static void advance(mr_scheduler *s, mr_group *group, const mr_candidate *const *next,
                    const mr_text_state *texts, uint32_t n_next)
{
    mr_beams *beams = group->beams;
    const uint32_t n_before = beams->n_live > 0 ? beams->n_live : 1;
    uint32_t parents[MR_MAX_BEAMS];
    uint32_t targets[MR_MAX_BEAMS];
    for (uint32_t i = 0; i < n_next; i++) {
        parents[i] = next[i]->beam;
    }
    gather_parents(group, parents, n_next, n_before);
    assign(parents, n_next, targets);
    for (uint32_t i = n_next; i < n_before; i++) {
        mr_scheduler_idle_beam(s, &group->sequences[i]);
    }
    for (uint32_t i = 0; i < n_next; i++) {
        mr_sequence *to = &group->sequences[targets[i]];
        if (targets[i] != parents[i]) {
            if (targets[i] < n_before) {
                mr_scheduler_idle_beam(s, to);
            }
            mr_scheduler_copy_beam(s, to, &group->sequences[parents[i]]);
        }
    }
    for (uint32_t i = 0; i < n_next; i++) {
        mr_sequence *beam = &group->sequences[targets[i]];
        beam->logprobs[mr_sequence_generated(beam)] = next[i]->logprob;
        beam->tokens[beam->n_tokens++] = next[i]->token;
        mr_fair_queue_serve(&s->fair, beam, beam->n_tokens - 1);
        beam->cumulative = next[i]->cumulative;
        beam->text = texts[i];
    }
    beams->n_live = n_next;
    beams->attached = true;
}

/* The pool becomes the result. */
static void finish_search(mr_scheduler *s, mr_group *group, uint64_t now_ns)
{
    mr_sequence *first = &group->sequences[0];
    mr_scheduler_release(s, first);
    mr_fair_queue_leave(&s->fair, first); /* it may have ended by its time limit there */
    mr_beams_sort(group->beams);
    first->state = MR_SEQUENCE_DRAINING;
    group->paused_ns = MR_NEVER;
    mr_scheduler_drain(s, group, now_ns);
    if (first->state == MR_SEQUENCE_DRAINING) {
        mr_sequence_list_insert(&s->draining, first);
    }
}

void mr_scheduler_search(mr_scheduler *s, mr_group *group, const mr_step_output *output,
                         uint32_t first_row, uint64_t now_ns)
{
    mr_beams *beams = group->beams;
    mr_request *request = group->request;
    const mr_candidate *next[MR_MAX_BEAMS];
    mr_text_state texts[MR_MAX_BEAMS];
    collect(s, group, output, first_row);
    const uint32_t n_next = choose(s, group, next, texts);
    const uint32_t tokens = mr_sequence_generated(&group->sequences[0]) + 1;
    group->n_generated += n_next;
    if (n_next == 0 ||
        mr_beams_decided(beams, next[0]->cumulative, tokens, max_generated(s, request))) {
        if (beams->n_pool == 0) {
            mr_fail(&request->error, MR_INTERNAL,
                    "beam search found no token to go on with: logit_bias bans them all");
            mr_scheduler_end(s, group, MR_FINISH_ERROR, now_ns);
            return;
        }
        finish_search(s, group, now_ns);
        return;
    }
    advance(s, group, next, texts, n_next);
}

bool mr_scheduler_cut_search(mr_scheduler *s, mr_group *group, mr_finish finish, uint64_t now_ns)
{
    mr_beams *beams = group->beams;
    if (beams == NULL || (beams->n_live == 0 && beams->n_pool == 0)) {
        return false;
    }
    const mr_verdict verdict = {.finish = finish,
                                .matched_token = MR_NO_TOKEN,
                                .matched_stop = MR_NO_STOP,
                                .text_bytes = UINT64_MAX};
    for (uint32_t i = 0; i < beams->n_live; i++) {
        const mr_candidate as_it_is = {.cumulative = group->sequences[i].cumulative,
                                       .token = MR_NO_TOKEN};
        finish_beam(beams, &group->sequences[i], &as_it_is, &verdict);
    }
    finish_search(s, group, now_ns);
    return true;
}

/* ---- results ---- */

/* Pushes the next token of the choice that goes out; its last one closes it. */
static void push_token(mr_scheduler *s, mr_group *group, double *cumulative, uint64_t now_ns)
{
    mr_beams *beams = group->beams;
    const mr_hypothesis *h = &beams->pool[beams->choice];
    const uint32_t at = beams->token;
    const bool ends = at + 1 == h->n_tokens;
    *cumulative += (double)h->logprobs[at];
    mr_token_event event = {
        .token = h->tokens[at],
        .choice = (uint16_t)beams->choice,
        .matched_stop = MR_NO_STOP,
        .matched_token = MR_NO_TOKEN,
        .logprob = h->logprobs[at],
        .cumulative_logprob = ends ? h->cumulative : *cumulative,
        .text_bytes = h->matched_stop == MR_NO_STOP ? UINT64_MAX : 0,
    };
    if (ends) {
        event.finish = (uint8_t)h->finish;
        event.matched_stop = h->matched_stop;
        event.matched_token = h->matched_token;
        event.text_bytes = h->text_bytes;
        mr_scheduler_close(s, group, h->finish, h->n_tokens, now_ns);
    }
    s->stats.generated_tokens++;
    mr_scheduler_push(s, group, &event, NULL);
    beams->token = ends ? 0 : at + 1;
    beams->choice += ends;
}

/* Fewer hypotheses than choices (a search that was cut, or of few tokens): the rest is empty. */
static void push_nothing(mr_scheduler *s, mr_group *group, uint64_t now_ns)
{
    mr_beams *beams = group->beams;
    const mr_finish finish = beams->pool[0].finish;
    mr_scheduler_close(s, group, finish, 0, now_ns);
    mr_scheduler_push_end(s, group, beams->choice++, finish);
}

/* Sum of what has gone out of the current choice. */
static double sum_so_far(const mr_beams *beams)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < beams->token; i++) {
        sum += (double)beams->pool[beams->choice].logprobs[i];
    }
    return sum;
}

void mr_scheduler_drain(mr_scheduler *s, mr_group *group, uint64_t now_ns)
{
    mr_beams *beams = group->beams;
    double cumulative = sum_so_far(beams);
    bool moved = false;
    if (group->request->usage.first_token_ns == 0) {
        group->request->usage.first_token_ns = now_ns;
    }
    group->ring_space = mr_ring_space(&group->request->events);
    while (group->n_open > 0 && group->ring_space > group->n_open) {
        if (beams->token == 0) {
            cumulative = 0.0;
        }
        if (beams->choice < beams->n_pool) {
            push_token(s, group, &cumulative, now_ns);
        } else {
            push_nothing(s, group, now_ns);
        }
        moved = true;
    }
    if (group->n_open == 0) {
        group->sequences[0].state = MR_SEQUENCE_ENDED;
    } else if (moved || !mr_group_paused(group)) {
        group->paused_ns = now_ns;
    }
}
