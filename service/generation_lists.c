/* SPDX-License-Identifier: Apache-2.0 */
#include "service/generation_lists.h"

void mr_generation_lists_deinit(mr_generation_lists *lists)
{
    mr_ids_deinit(&lists->bias_tokens);
    mr_buffer_deinit(&lists->bias_values);
    mr_ids_deinit(&lists->stop_tokens);
    mr_buffer_deinit(&lists->stop_strings);
    mr_buffer_deinit(&lists->cache_salt);
    mr_stop_destroy(lists->stop);
    lists->stop = NULL;
}

mr_status mr_generation_lists_bias(mr_generation_lists *lists, uint32_t token, float value)
{
    MR_TRY(mr_ids_push(&lists->bias_tokens, token));
    return mr_buffer_append(&lists->bias_values, &value, sizeof(value));
}

mr_status mr_generation_lists_stop(mr_generation_lists *lists, mr_stop_string string)
{
    return mr_buffer_append(&lists->stop_strings, &string, sizeof(string));
}

mr_status mr_generation_lists_salt(mr_generation_lists *lists, const void *salt, size_t bytes)
{
    return mr_buffer_append(&lists->cache_salt, salt, bytes);
}

void mr_generation_lists_view(const mr_generation_lists *lists, mr_generation_ask *ask)
{
    ask->bias_tokens = lists->bias_tokens.data;
    ask->bias_values = (const float *)(const void *)lists->bias_values.data;
    ask->n_bias = lists->bias_tokens.count;
    ask->stop_tokens = lists->stop_tokens.data;
    ask->n_stop_tokens = lists->stop_tokens.count;
    ask->stops = (const mr_stop_string *)(const void *)lists->stop_strings.data;
    ask->n_stops = lists->stop_strings.size / sizeof(mr_stop_string);
    ask->cache_salt = (mr_bytes){lists->cache_salt.data, lists->cache_salt.size};
}

mr_status mr_generation_lists_make_stop(mr_generation_lists *lists, mr_error *err)
{
    const size_t count = lists->stop_strings.size / sizeof(mr_stop_string);
    if (count == 0) {
        return MR_OK;
    }
    return mr_stop_create((const mr_stop_string *)(const void *)lists->stop_strings.data, count,
                          &lists->stop, err);
}

void mr_generation_lists_fill(const mr_generation_lists *lists, mr_request_spec *spec)
{
    spec->bias_tokens = lists->bias_tokens.data;
    spec->bias_values = (const float *)(const void *)lists->bias_values.data;
    spec->n_bias = (uint32_t)lists->bias_tokens.count;
    spec->stop_tokens = lists->stop_tokens.data;
    spec->n_stop_tokens = (uint32_t)lists->stop_tokens.count;
    spec->stop = lists->stop;
}
