/* SPDX-License-Identifier: Apache-2.0 */
#include "model/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../base/temp_dir.h"
#include "safetensors_writer.h"

#include <stdlib.h>
#include <string.h>

#define INDEX        "model.safetensors.index.json"
#define TENSOR(name) "{\"" name "\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}"

static void assert_checkpoint(const temp_dir *dir, mr_status status, const char *words)
{
    mr_checkpoint *checkpoint = NULL;
    mr_error err = {0};
    const mr_status found = mr_checkpoint_open(dir->path, &checkpoint, &err);
    if (found != status || strstr(err.message, words) == NULL) {
        fail_msg("status %d, \"%s\" lacks \"%s\"", found, err.message, words);
    }
    mr_checkpoint_close(checkpoint);
}

static void test_shards(void **state)
{
    (void)state;
    const temp_dir dir = temp_dir_make();
    assert_checkpoint(&dir, MR_NOT_FOUND, "neither model.safetensors nor " INDEX);
    safetensors_write(&dir, "a.safetensors", TENSOR("x"), 2);
    safetensors_write(&dir, "b.safetensors", TENSOR("y"), 2);
    temp_dir_write(&dir, INDEX,
                   "{\"metadata\":{\"total_size\":4},\"weight_map\":{\"x\":\"a.safetensors\","
                   "\"y\":\"b.safetensors\"}}");
    mr_checkpoint *checkpoint;
    mr_error err = {0};
    assert_int_equal(mr_checkpoint_open(dir.path, &checkpoint, &err), MR_OK);
    const mr_tensor_table *tensors = mr_checkpoint_tensors(checkpoint);
    assert_int_equal(tensors->count, 2);
    const mr_model_tensor *y = mr_tensor_table_find(tensors, "y");
    assert_non_null(y);
    assert_int_equal(((const uint8_t *)y->data)[1], 1);
    mr_checkpoint_release(checkpoint, y->data, y->bytes);
    assert_int_equal(((const uint8_t *)y->data)[1], 1);
    mr_checkpoint_close(checkpoint);

    static const struct {
        const char *index;
        const char *words;
    } bad[] = {
        {"{\"weight_map\":{\"x\":\"a.safetensors\",\"z\":\"b.safetensors\"}}",
         "'z' is not in b.safetensors"},
        {"{\"weight_map\":{\"x\":\"b.safetensors\",\"y\":\"a.safetensors\"}}",
         "'x' is not in b.safetensors"},
        {"{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\","
         "\"x\":\"b.safetensors\"}}",
         "'x' is not in b.safetensors"},
        {"{\"weight_map\":{\"x\":\"../a.safetensors\"}}", "outside the directory"},
        {"{\"weight_map\":{\"x\":\"/etc/passwd\"}}", "outside the directory"},
        {"{\"weight_map\":{\"x\":7}}", "weight_map"},
        {"{\"weight_map\":{}}", "no weight_map"},
        {"{}", "no weight_map"},
        {"{\"weight_map\":", INDEX},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        temp_dir_write(&dir, INDEX, bad[i].index);
        assert_checkpoint(&dir, MR_DATA_LOSS, bad[i].words);
    }
    temp_dir_write(&dir, INDEX,
                   "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"c.safetensors\"}}");
    assert_checkpoint(&dir, MR_NOT_FOUND, "c.safetensors");
    safetensors_write(&dir, "c.safetensors", TENSOR("x"), 2);
    assert_checkpoint(&dir, MR_DATA_LOSS, "'x' is in two shards");
    safetensors_write(&dir, "c.safetensors", TENSOR("y"), 1);
    assert_checkpoint(&dir, MR_DATA_LOSS, "c.safetensors: tensor 'y'");
    temp_dir_remove(&dir);
}

/* Each entry of a large index must not be compared with each of its files. */
static void test_an_index_of_many_files_and_entries_is_read_at_once(void **state)
{
    (void)state;
    enum { FILES = 4096, ENTRIES = 400000 };
    const temp_dir dir = temp_dir_make();
    char *text = malloc(64 + (size_t)ENTRIES * 32);
    assert_non_null(text);
    size_t used = (size_t)sprintf(text, "{\"weight_map\":{");
    for (unsigned i = 0; i < ENTRIES; i++) {
        const unsigned file = i < FILES ? i : FILES - 1 - i % 8;
        used += (size_t)sprintf(text + used, "%s\"%x\":\"f%u\"", i == 0 ? "" : ",", i, file);
    }
    (void)sprintf(text + used, "}}");
    temp_dir_write(&dir, INDEX, text);
    free(text);
    assert_checkpoint(&dir, MR_NOT_FOUND, "/f0'");
    temp_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_an_index_of_many_files_and_entries_is_read_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
