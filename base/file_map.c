/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static mr_status fail_errno(mr_error *err, const char *verb, const char *path, int error)
{
    char text[128];
    const char *reason = strerror_r(error, text, sizeof(text));
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return mr_fail(err, MR_NOT_FOUND, "cannot %s '%s': %s; check the path", verb, path, reason);
    case EACCES:
    case EPERM:
        return mr_fail(err, MR_PERMISSION_DENIED,
                       "cannot %s '%s': %s; let this user read the file and search its folders",
                       verb, path, reason);
    case ENOMEM:
    case EMFILE:
    case ENFILE:
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "cannot %s '%s': %s; raise the limit (ulimit -n, ulimit -v) or free memory",
                       verb, path, reason);
    case ELOOP:
    case ENAMETOOLONG:
    case ENODEV:
    case ENXIO:
        return mr_fail(err, MR_INVALID_ARGUMENT, "cannot %s '%s': %s; give a regular file", verb,
                       path, reason);
    default:
        return mr_fail(err, MR_UNKNOWN, "cannot %s '%s': %s; check the disk that holds the file",
                       verb, path, reason);
    }
}

static mr_status map_descriptor(int fd, const char *path, mr_file_map *out, mr_error *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return fail_errno(err, "read the size of", path, errno);
    }
    if (!S_ISREG(info.st_mode)) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "'%s' is %s; give a regular file", path,
                       S_ISDIR(info.st_mode) ? "a directory" : "not a regular file");
    }
    if (info.st_size == 0) {
        return MR_OK;
    }
    const size_t size = (size_t)info.st_size;
    void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        return fail_errno(err, "map", path, errno);
    }
    *out = (mr_file_map){.data = data, .size = size};
    return MR_OK;
}

mr_status mr_file_map_open(const char *path, mr_file_map *out, mr_error *err)
{
    *out = (mr_file_map){0};
    /* O_NONBLOCK: opening a pipe must not wait for its writer. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return fail_errno(err, "open", path, errno);
    }
    const mr_status status = map_descriptor(fd, path, out, err);
    close(fd);
    return status;
}

void mr_file_map_close(mr_file_map *map)
{
    if (map->data != NULL) {
        munmap((void *)(uintptr_t)map->data, map->size);
    }
    *map = (mr_file_map){0};
}

void mr_file_map_release(const mr_file_map *map, const void *data, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t base = (uintptr_t)map->data;
    const uintptr_t begin = (uintptr_t)data;
    MR_CHECK(begin >= base && begin - base <= map->size && bytes <= map->size - (begin - base));
    /* Inwards, because neighbours on the same page may still be needed; the last page of the file
     * has none behind it. */
    const uintptr_t first = (begin + page - 1) & ~(page - 1);
    const bool to_end = begin + bytes == base + map->size;
    const uintptr_t last = to_end ? begin + bytes : (begin + bytes) & ~(page - 1);
    if (first < last) {
        madvise((void *)first, last - first, MADV_DONTNEED);
    }
}
