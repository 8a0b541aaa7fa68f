/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cgroup.h"

#include "base/checked.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_MAX_BYTES 16384u

/* One folder of the hierarchy that a controller lives in. */
typedef struct group_dir {
    const char *mount; /* borrows */
    char path[PATH_MAX];
    size_t root_length; /* of the hierarchy's own root inside `path` */
} group_dir;

/* Reads a small file whole, NUL-terminated. */
static bool read_file(const char *path, char text[FILE_MAX_BYTES])
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    size_t size = 0;
    ssize_t got = 1;
    while (got > 0 && size < FILE_MAX_BYTES - 1) {
        got = read(fd, text + size, FILE_MAX_BYTES - 1 - size);
        size += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    text[size] = '\0';
    return got >= 0;
}

static bool read_group_file(const group_dir *dir, const char *name, char text[FILE_MAX_BYTES])
{
    char path[PATH_MAX + 64];
    const int length = snprintf(path, sizeof(path), "%s/%s", dir->path, name);
    return length > 0 && (size_t)length < sizeof(path) && read_file(path, text);
}

/* A non-negative decimal number at *text, which moves behind it. "max" and "-1" are none. */
static bool parse_number(const char **text, uint64_t *out)
{
    if (**text < '0' || **text > '9') {
        return false;
    }
    char *end;
    errno = 0;
    *out = strtoull(*text, &end, 10);
    *text = end;
    return errno == 0;
}

static bool read_group_number(const group_dir *dir, const char *name, uint64_t *out)
{
    char text[FILE_MAX_BYTES];
    const char *at = text;
    return read_group_file(dir, name, text) && parse_number(&at, out);
}

static bool list_contains(const char *list, size_t bytes, const char *name)
{
    const size_t length = strlen(name);
    while (bytes > 0) {
        const char *comma = memchr(list, ',', bytes);
        const size_t part = comma != NULL ? (size_t)(comma - list) : bytes;
        if (part == length && memcmp(list, name, length) == 0) {
            return true;
        }
        const size_t step = comma != NULL ? part + 1 : part;
        list += step;
        bytes -= step;
    }
    return false;
}

/* Finds the line "id:controllers:path" of the controller (v1), or the one with an empty list when
 * `controller` is "" (v2), and sets `dir` to mount/<root>/path. */
static bool find_group(const char *membership, const char *controller, const char *root,
                       group_dir *dir)
{
    char text[FILE_MAX_BYTES];
    if (!read_file(membership, text)) {
        return false;
    }
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        const char *list = strchr(line, ':');
        const char *path = list != NULL ? strchr(list + 1, ':') : NULL;
        if (path == NULL) {
            continue;
        }
        const size_t list_bytes = (size_t)(path - (list + 1));
        const bool match = controller[0] == '\0' ? list_bytes == 0
                                                 : list_contains(list + 1, list_bytes, controller);
        if (match) {
            const int root_length =
                snprintf(dir->path, sizeof(dir->path), "%s%s", dir->mount, root);
            const int length = snprintf(dir->path, sizeof(dir->path), "%s%s%s", dir->mount, root,
                                        strcmp(path + 1, "/") == 0 ? "" : path + 1);
            dir->root_length = root_length > 0 ? (size_t)root_length : 0;
            return length > 0 && (size_t)length < sizeof(dir->path);
        }
    }
    return false;
}

/* Moves to the parent; false at the root. A path from outside the container's own view does not
 * exist below the mount, and walking up ends at the root that does. */
static bool to_parent(group_dir *dir)
{
    char *slash = strrchr(dir->path, '/');
    if (slash == NULL || (size_t)(slash - dir->path) < dir->root_length) {
        return false;
    }
    *slash = '\0';
    return true;
}

static uint64_t quota_limit(uint64_t quota, uint64_t period)
{
    uint64_t scaled;
    return period > 0 && mr_mul_u64(quota, 1000, &scaled) ? scaled / period : MR_CGROUP_UNLIMITED;
}

static uint64_t cpu_limit_v2(const group_dir *dir)
{
    char text[FILE_MAX_BYTES];
    const char *at = text;
    uint64_t quota;
    uint64_t period;
    if (!read_group_file(dir, "cpu.max", text) || !parse_number(&at, &quota) || *at != ' ') {
        return MR_CGROUP_UNLIMITED;
    }
    at++;
    return parse_number(&at, &period) ? quota_limit(quota, period) : MR_CGROUP_UNLIMITED;
}

static uint64_t cpu_limit_v1(const group_dir *dir)
{
    uint64_t quota;
    uint64_t period;
    const bool limited = read_group_number(dir, "cpu.cfs_quota_us", &quota) &&
                         read_group_number(dir, "cpu.cfs_period_us", &period);
    return limited ? quota_limit(quota, period) : MR_CGROUP_UNLIMITED;
}

/* Value of "<key> <number>" in the group's memory.stat, 0 when it is not there. */
static uint64_t memory_stat(const group_dir *dir, const char *key)
{
    char text[FILE_MAX_BYTES];
    if (!read_group_file(dir, "memory.stat", text)) {
        return 0;
    }
    const size_t length = strlen(key);
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        if (strncmp(line, key, length) == 0 && line[length] == ' ') {
            const char *at = line + length + 1;
            uint64_t value;
            return parse_number(&at, &value) ? value : 0;
        }
    }
    return 0;
}

static uint64_t memory_left(const group_dir *dir, const char *limit_name, const char *usage_name,
                            const char *cache_key)
{
    uint64_t limit;
    uint64_t usage;
    if (!read_group_number(dir, limit_name, &limit) ||
        !read_group_number(dir, usage_name, &usage)) {
        return MR_CGROUP_UNLIMITED;
    }
    usage -= mr_min_u64(usage, memory_stat(dir, cache_key));
    return limit - mr_min_u64(limit, usage);
}

static uint64_t memory_left_v2(const group_dir *dir)
{
    return memory_left(dir, "memory.max", "memory.current", "inactive_file");
}

static uint64_t memory_left_v1(const group_dir *dir)
{
    return memory_left(dir, "memory.limit_in_bytes", "memory.usage_in_bytes",
                       "total_inactive_file");
}

typedef struct hierarchy {
    const char *controller; /* "" is v2 */
    const char *root;       /* below the mount */
    uint64_t (*limit)(const group_dir *dir);
} hierarchy;

static uint64_t tightest(const char *membership, const char *mount, const hierarchy *hierarchies,
                         size_t count)
{
    uint64_t limit = MR_CGROUP_UNLIMITED;
    for (size_t i = 0; i < count; i++) {
        group_dir dir = {.mount = mount};
        if (!find_group(membership, hierarchies[i].controller, hierarchies[i].root, &dir)) {
            continue;
        }
        do {
            limit = mr_min_u64(limit, hierarchies[i].limit(&dir));
        } while (to_parent(&dir));
    }
    return limit;
}

uint64_t mr_cgroup_cpu_limit(const char *membership, const char *mount)
{
    static const hierarchy hierarchies[] = {
        {"", "", cpu_limit_v2},
        {"cpu", "/cpu", cpu_limit_v1},
        {"cpu", "/cpu,cpuacct", cpu_limit_v1},
    };
    return tightest(membership, mount, hierarchies, sizeof(hierarchies) / sizeof(*hierarchies));
}

uint64_t mr_cgroup_memory_left(const char *membership, const char *mount)
{
    static const hierarchy hierarchies[] = {
        {"", "", memory_left_v2},
        {"memory", "/memory", memory_left_v1},
    };
    return tightest(membership, mount, hierarchies, sizeof(hierarchies) / sizeof(*hierarchies));
}
