/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast text becomes ids on one core: bench/tokenizer MODEL FILE... A pass over a file of lines
 * of a few kilobytes is timed twice: cold, with a tokenizer just made, and warm, the best of the
 * next five. Prints MB/s (10^6 bytes).
 */
#include "base/file_map.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define CHUNK_BYTES 4096u /* a text ends at the first line feed from here on */
#define WARM_PASSES 5

static size_t chunk_end(const mr_file_map *map, size_t begin)
{
    if (map->size - begin <= CHUNK_BYTES) {
        return map->size;
    }
    const uint8_t *from = map->data + begin + CHUNK_BYTES;
    const uint8_t *line = memchr(from, '\n', map->size - begin - CHUNK_BYTES);
    return line != NULL ? (size_t)(line - map->data) + 1 : map->size;
}

/* What this thread has computed: neighbours on the machine do not count. */
static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Encodes all of the file; *seconds and *tokens tell how it went. */
static mr_status pass(const mr_tokenizer *tokenizer, const mr_file_map *map, double *seconds,
                      size_t *tokens, mr_error *err)
{
    const mr_encode_options options = {.parse_special = true};
    mr_ids ids = {0};
    *tokens = 0;
    const double begin = cpu_seconds();
    for (size_t at = 0; at < map->size;) {
        const size_t end = chunk_end(map, at);
        ids.count = 0;
        MR_TRY(mr_tokenizer_encode(tokenizer, map->data + at, end - at, &options, &ids, err));
        *tokens += ids.count;
        at = end;
    }
    *seconds = cpu_seconds() - begin;
    mr_ids_deinit(&ids);
    return MR_OK;
}

static mr_status measure(const char *model_path, const char *path, mr_error *err)
{
    mr_model *model;
    mr_file_map map;
    MR_TRY(mr_file_map_open(path, &map, err));
    MR_TRY(mr_model_open_text(model_path, &model, err));
    const mr_tokenizer *tokenizer = mr_model_tokenizer(model);
    if (tokenizer == NULL) {
        return mr_fail(err, MR_FAILED_PRECONDITION, "%s: no tokenizer", model_path);
    }
    double cold = 0.0;
    double warm = 0.0;
    size_t tokens = 0;
    MR_TRY(pass(tokenizer, &map, &cold, &tokens, err));
    for (int i = 0; i < WARM_PASSES; i++) {
        double seconds = 0.0;
        MR_TRY(pass(tokenizer, &map, &seconds, &tokens, err));
        warm = i == 0 || seconds < warm ? seconds : warm;
    }
    const char *slash = strrchr(path, '/');
    printf("%-20s %9zu bytes %9zu tokens %8.1f cold %8.1f warm MB/s\n",
           slash != NULL ? slash + 1 : path, map.size, tokens, (double)map.size / cold / 1e6,
           (double)map.size / warm / 1e6);
    mr_model_close(model);
    mr_file_map_close(&map);
    return MR_OK;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fputs("usage: tokenizer MODEL FILE...\n", stderr);
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        mr_error err = {0};
        if (measure(argv[1], argv[i], &err) != MR_OK) {
            fprintf(stderr, "tokenizer: %s\n", err.message);
            return 1;
        }
    }
    return 0;
}
