/* SPDX-License-Identifier: Apache-2.0 */
/* A scratch folder in the working directory of the test, removed at its end. */
#ifndef MILLRACE_TESTS_TEMP_DIR_H
#define MILLRACE_TESTS_TEMP_DIR_H

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct temp_dir {
    char path[64];
} temp_dir;

static inline temp_dir temp_dir_make(void)
{
    temp_dir dir = {"mr-test-XXXXXX"};
    assert_non_null(mkdtemp(dir.path));
    return dir;
}

/* dir/name in `path`. */
static inline const char *temp_dir_join(const temp_dir *dir, const char *name, char path[PATH_MAX])
{
    const int length = snprintf(path, PATH_MAX, "%s/%s", dir->path, name);
    assert_in_range(length, 1, PATH_MAX - 1);
    return path;
}

/* Writes dir/name, making the folders on the way. */
static inline void temp_dir_write(const temp_dir *dir, const char *name, const char *text)
{
    char path[PATH_MAX];
    temp_dir_join(dir, name, path);
    for (char *slash = strchr(path, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static inline int temp_dir_unlink(const char *path, const struct stat *info, int type,
                                  struct FTW *walk)
{
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

static inline void temp_dir_remove(const temp_dir *dir)
{
    assert_int_equal(nftw(dir->path, temp_dir_unlink, 16, FTW_DEPTH | FTW_PHYS), 0);
}

#endif
