/* A mount on a slow network file system, or one that hangs: preload it (LD_PRELOAD) into a process.
 *
 *   PLIMSOLL_SLOW_MOUNT       absolute path of the folder that is on that mount
 *   PLIMSOLL_SLOW_MOUNT_US    microseconds that each open, read, stat by path and listing below it takes longer
 *   PLIMSOLL_SLOW_MOUNT_HANG  end of the name of a file whose reads never return
 *
 * fstat takes no longer: an NFS client has the attributes from the open. Nothing is cached and nothing read ahead by a
 * kernel, so a real client makes fewer round trips than this.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 1 << 16, HERE = 1, HANGS = 2 };
static unsigned char opened[FILES];

static int below(int folder, const char *path) {
    const char *root = getenv("PLIMSOLL_SLOW_MOUNT");
    if (!root || !path)
        return 0;
    if (path[0] == '/')
        return strncmp(path, root, strlen(root)) == 0;
    return folder >= 0 && folder < FILES && opened[folder];
}

static void wait_for_it(void) {
    const char *text = getenv("PLIMSOLL_SLOW_MOUNT_US");
    long us = text ? atol(text) : 0;
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    if (us > 0)
        nanosleep(&time, NULL);
}

static int note(int file, int here, const char *path) {
    if (file < 0 || file >= FILES)
        return file;
    const char *end = getenv("PLIMSOLL_SLOW_MOUNT_HANG");
    size_t length = end ? strlen(end) : 0, whole = strlen(path);
    int hangs = here && length && whole >= length && strcmp(path + whole - length, end) == 0;
    opened[file] = (here ? HERE : 0) | (hangs ? HANGS : 0);
    return file;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define MODE(flags)                                                                                                    \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                             \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }
#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        REAL(name);                                                                                                    \
        MODE(flags)                                                                                                    \
        int here = below(-1, path);                                                                                    \
        if (here)                                                                                                      \
            wait_for_it();                                                                                             \
        return note(real(path, flags, mode), here, path);                                                              \
    }
#define OPENAT(name)                                                                                                   \
    int name(int folder, const char *path, int flags, ...) {                                                           \
        REAL(name);                                                                                                    \
        MODE(flags)                                                                                                    \
        int here = below(folder, path);                                                                                \
        if (here)                                                                                                      \
            wait_for_it();                                                                                             \
        return note(real(folder, path, flags, mode), here, path);                                                      \
    }
#define STAT(name, type)                                                                                               \
    int name(const char *restrict path, struct type *restrict found) {                                                 \
        REAL(name);                                                                                                    \
        if (below(-1, path))                                                                                           \
            wait_for_it();                                                                                             \
        return real(path, found);                                                                                      \
    }
#define STATAT(name, type)                                                                                             \
    int name(int folder, const char *restrict path, struct type *restrict found, int flags) {                          \
        REAL(name);                                                                                                    \
        if (below(folder, path))                                                                                       \
            wait_for_it();                                                                                             \
        return real(folder, path, found, flags);                                                                       \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

DIR *opendir(const char *path) {
    REAL(opendir);
    if (below(-1, path))
        wait_for_it();
    return real(path);
}

ssize_t read(int file, void *buffer, size_t size) {
    REAL(read);
    if (file >= 0 && file < FILES && opened[file]) {
        while (opened[file] & HANGS)
            pause();
        wait_for_it();
    }
    return real(file, buffer, size);
}
