/* A stand-in libnvidia-ml.so.1: the part of NVML that a memory-sizing program needs, answered from a text file.
 *
 * The file is read again on EVERY call, so that a test can change free memory, or break the driver, while pods run.
 * It is named by PLIMSOLL_FAKE_NVML (default /run/plimsoll-fake-nvml/devices.conf):
 *
 *     driver=580.159.04
 *     fail=0                    non-zero: init and every query return this NVML code
 *     [GPU-<uuid>]              one section per device, in "PCI order": the order of NVML's indices
 *     name=NVIDIA H100 80GB HBM3
 *     total=85520809984         bytes; physical memory
 *     reserved=577765376        bytes; held by driver and firmware
 *     used=0                    bytes; allocated by processes, WITHOUT reserved
 *     aggregate=1               on a device with slices: its own memory may be read (see begin_memory)
 *     [MIG-<uuid>]              a slice, with the same keys; its name ends in " MIG <profile>"
 *     parent=GPU-<uuid>         the device that it is cut from; which is in MIG mode as long as it has slices
 *     slot=3                    its index below the parent; default: its place among the parent's slices
 *
 * Memory that a running server takes comes on top of `used`. It is a lock, not a number in the file: see held().
 *
 * Only what NVIDIA_VISIBLE_DEVICES lists is shown (UUIDs with commas, or all; void, none, empty or unset show nothing):
 * on a real node the container runtime does this by leaving out device nodes.
 * Signatures, codes and texts are those of NVIDIA's NVML API reference; test_contract.py holds the sources. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999,
};
enum { MAX_DEVICES = 64, MAX_SLICES = 7, TEXT = 96, HOLD_SLOTS = 64 };
#define HOLD_STRIDE (1ll << 44) /* bytes between two servers' locks: more than any device has */

typedef unsigned long long u64;
typedef struct { u64 total, free, used; } memory_v1;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2;
#define MEMORY_V2 ((unsigned)(sizeof(memory_v2) | (2u << 24)))

typedef struct { char uuid[TEXT], parent[TEXT], name[TEXT]; u64 total, reserved, used; int slot, aggregate; } gpu;
typedef struct { char driver[TEXT]; int fail; int count; gpu gpus[MAX_DEVICES]; } state;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  /* NVML is documented to be thread-safe */
static int references;                                    /* nvmlInit is counted; shutdown happens at zero */
static char handles[MAX_DEVICES][TEXT];                   /* a handle points at an interned UUID: it survives changes of the file */

/* ---- the file ------------------------------------------------------------------------------------------------- */

static void copy(char *to, const char *from) { snprintf(to, TEXT, "%.*s", TEXT - 1, from); }

static void read_line(state *s, char *line) {
    line[strcspn(line, "\r\n")] = 0;
    size_t n = strlen(line);
    if (line[0] == '[' && n > 2 && line[n - 1] == ']' && s->count < MAX_DEVICES) {
        line[n - 1] = 0;
        gpu *g = &s->gpus[s->count++];
        memset(g, 0, sizeof *g);
        g->slot = -1;
        copy(g->uuid, line + 1);
        return;
    }
    char *value = strchr(line, '=');
    if (!value) return;
    *value++ = 0;
    if (!s->count) {
        if (!strcmp(line, "driver")) copy(s->driver, value);
        if (!strcmp(line, "fail")) s->fail = atoi(value);
        return;
    }
    gpu *g = &s->gpus[s->count - 1];
    if (!strcmp(line, "name")) copy(g->name, value);
    if (!strcmp(line, "parent")) copy(g->parent, value);
    if (!strcmp(line, "slot")) g->slot = atoi(value);
    if (!strcmp(line, "aggregate")) g->aggregate = atoi(value);
    if (!strcmp(line, "total")) g->total = strtoull(value, NULL, 10);
    if (!strcmp(line, "reserved")) g->reserved = strtoull(value, NULL, 10);
    if (!strcmp(line, "used")) g->used = strtoull(value, NULL, 10);
}

/* Bytes of a device that running servers hold. Each one keeps a shared open-file-description lock as long as its memory
   on held/<uuid>, beside the state file, one server a slot. A lock needs no right to write, every container with the
   folder sees it, and the kernel drops it with its holder, SIGKILL included. */
static u64 held(const char *path, const char *uuid) {
    char name[512];
    const char *slash = strrchr(path, '/');
    snprintf(name, sizeof name, "%.*sheld/%s", slash ? (int)(slash - path + 1) : 0, path, uuid);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    u64 sum = 0;
    if (fd < 0) return 0;
    for (int slot = -1; slot < HOLD_SLOTS; slot++) {  /* -1 asks for any lock at all: mostly there is none */
        struct flock look = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        if (slot >= 0) { look.l_start = slot * HOLD_STRIDE; look.l_len = HOLD_STRIDE; }
        if (fcntl(fd, F_OFD_GETLK, &look) || (look.l_type == F_UNLCK && slot < 0)) break;
        if (look.l_type != F_UNLCK && slot >= 0) sum += (u64)look.l_len;
    }
    close(fd);
    return sum;
}

static int load(state *s) {  /* no file is no driver */
    const char *given = getenv("PLIMSOLL_FAKE_NVML");
    const char *path = given && *given ? given : "/run/plimsoll-fake-nvml/devices.conf";
    FILE *f = fopen(path, "re");
    if (!f) return DRIVER_NOT_LOADED;
    memset(s, 0, sizeof *s);
    char line[256];
    while (fgets(line, sizeof line, f)) read_line(s, line);
    fclose(f);
    for (int i = 0; i < s->count; i++) s->gpus[i].used += held(path, s->gpus[i].uuid);
    return s->fail;
}

/* A replica of a time-sliced device (GPU-<uuid>::1, as device plugins name them) is that device. */
static int listed(const char *list, const char *uuid) {
    size_t n = strlen(uuid);
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
        if (!strncmp(p, uuid, n) && (strcspn(p, ",") == n || !strncmp(p + n, "::", 2))) return 1;
    return 0;
}

static int is_mig(const gpu *g) { return !strncmp(g->uuid, "MIG-", 4); }

/* Is this device shown to this process? A GPU is also shown, as on a real node, when only a slice of it is given. */
static int visible(const state *s, const gpu *g) {
    const char *list = getenv("NVIDIA_VISIBLE_DEVICES");
    if (!list || !*list || !strcmp(list, "void") || !strcmp(list, "none")) return 0;
    if (!strcmp(list, "all") || listed(list, g->uuid)) return 1;
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->gpus[i].parent, g->uuid) && listed(list, s->gpus[i].uuid)) return 1;
    return 0;
}

static gpu *find(state *s, const char *uuid) {
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->gpus[i].uuid, uuid) && visible(s, &s->gpus[i])) return &s->gpus[i];
    return NULL;
}

static int has_slices(const state *s, const gpu *g) {
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->gpus[i].parent, g->uuid)) return 1;
    return 0;
}

/* The slice with this index. Indices have holes: where no slice was made, and where one belongs to another container. */
static const gpu *slice_at(const state *s, const gpu *parent, unsigned index) {
    unsigned place = 0;
    for (int i = 0; i < s->count; i++) {
        const gpu *g = &s->gpus[i];
        if (strcmp(g->parent, parent->uuid)) continue;
        if ((g->slot < 0 ? place : (unsigned)g->slot) == index) return visible(s, g) ? g : NULL;
        place++;
    }
    return NULL;
}

/* ---- the frame of every call ------------------------------------------------------------------------------------ */

static int begin(state *s) {  /* takes the lock and reads the file; every return path ends in done() */
    pthread_mutex_lock(&lock);
    return references ? load(s) : UNINITIALIZED;
}

static int done(int code) { pthread_mutex_unlock(&lock); return code; }

static int begin_device(state *s, void *handle, gpu **g) {
    int code = begin(s);
    if (code) return code;
    size_t offset = (size_t)((char *)handle - &handles[0][0]);
    if ((char *)handle < &handles[0][0] || offset >= sizeof handles || offset % TEXT || !*(char *)handle) return INVALID_ARGUMENT;
    return (*g = find(s, handle)) ? SUCCESS : GPU_IS_LOST;
}

static int give_handle(const gpu *g, void **handle) {
    if (!handle) return INVALID_ARGUMENT;
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (!*handles[i]) copy(handles[i], g->uuid);
        if (!strcmp(handles[i], g->uuid)) { *handle = handles[i]; return SUCCESS; }
    }
    return UNKNOWN;
}

static int give_text(const char *text, char *buffer, unsigned length) {
    if (!buffer) return INVALID_ARGUMENT;
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

static int give_number(unsigned *to, unsigned value) {
    if (!to) return INVALID_ARGUMENT;
    *to = value;
    return SUCCESS;
}

static u64 free_bytes(const gpu *g) {
    u64 taken = g->reserved + g->used;
    return taken < g->total ? g->total - taken : 0;
}

/* ---- initialisation and errors ---------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    state s;
    pthread_mutex_lock(&lock);
    int code = load(&s);
    if (!code) references++;
    return done(code);
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    return done(references ? (references--, SUCCESS) : UNINITIALIZED);
}

const char *nvmlErrorString(int code) {  /* 1 to 18, 20 and 999 as pynvml quotes them; 0 and the rest are our own words */
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout",
        "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires restart", "The operating system has blocked the request.", "RM has detected an NVML/RM version mismatch.",
        "In use", "Insufficient Memory", "No data", "vGPU ECC not supported", "Insufficient Resources",
        "Frequency not supported", "Argument version mismatch", "Deprecated", "Not ready", "GPU not found", "Invalid state",
    };
    return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *buffer, unsigned length) {
    state s;
    int code = begin(&s);
    return done(code ? code : give_text(s.driver, buffer, length));
}

int nvmlSystemGetNVMLVersion(char *buffer, unsigned length) {  /* CUDA's major number, then the driver's version */
    state s;
    int code = begin(&s);
    char text[TEXT + 8];
    if (!code) snprintf(text, sizeof text, "13.%s", s.driver);
    return done(code ? code : give_text(text, buffer, length));
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    state s;
    int code = begin(&s);
    return done(code ? code : give_number((unsigned *)version, 13000));
}

/* ---- devices ------------------------------------------------------------------------------------------------------ */

int nvmlDeviceGetCount_v2(unsigned *count) {  /* slices are not counted */
    state s;
    int code = begin(&s);
    unsigned n = 0;
    for (int i = 0; !code && i < s.count; i++) n += !is_mig(&s.gpus[i]) && visible(&s, &s.gpus[i]);
    return done(code ? code : give_number(count, n));
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    state s;
    int code = begin(&s);
    for (int i = 0; !code && i < s.count; i++)
        if (!is_mig(&s.gpus[i]) && visible(&s, &s.gpus[i]) && !index--) return done(give_handle(&s.gpus[i], handle));
    return done(code ? code : INVALID_ARGUMENT);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    state s;
    int code = begin(&s);
    if (code) return done(code);
    if (!uuid) return done(INVALID_ARGUMENT);
    gpu *g = find(&s, uuid);
    return done(g ? give_handle(g, handle) : NOT_FOUND);
}

int nvmlDeviceGetName(void *handle, char *buffer, unsigned length) {
    state s;
    gpu *g;
    int code = begin_device(&s, handle, &g);
    return done(code ? code : give_text(g->name, buffer, length));
}

int nvmlDeviceGetUUID(void *handle, char *buffer, unsigned length) {
    state s;
    gpu *g;
    int code = begin_device(&s, handle, &g);
    return done(code ? code : give_text(g->uuid, buffer, length));
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static int begin_memory(state *s, void *handle, gpu **g) {
    int code = begin_device(s, handle, g);
    if (code || !has_slices(s, *g)) return code;
    /* "In MIG mode, if device handle is provided, the API returns aggregate information, only if the caller has
       appropriate privileges": a container has none, as a rule. */
    if (!(*g)->aggregate) return NO_PERMISSION;
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->gpus[i].parent, (*g)->uuid)) (*g)->used += s->gpus[i].used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *memory) {  /* total = free + used; used holds reserved too */
    state s;
    gpu *g;
    int code = begin_memory(&s, handle, &g);
    if (!code && !memory) code = INVALID_ARGUMENT;
    if (!code) *memory = (memory_v1){.total = g->total, .free = free_bytes(g), .used = g->total - free_bytes(g)};
    return done(code);
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *memory) {  /* total = reserved + used + free */
    state s;
    gpu *g;
    int code = begin_memory(&s, handle, &g);
    if (!code && !memory) code = INVALID_ARGUMENT;
    if (!code && memory->version != MEMORY_V2) code = ARGUMENT_VERSION_MISMATCH;
    if (!code)
        *memory = (memory_v2){MEMORY_V2, g->total, g->reserved, free_bytes(g), g->total - g->reserved - free_bytes(g)};
    return done(code);
}

/* ---- MIG -------------------------------------------------------------------------------------------------------------- */

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    state s;
    gpu *g;
    int code = begin_device(&s, handle, &g);
    if (!code && !has_slices(&s, g)) code = NOT_SUPPORTED;
    if (!code) code = give_number(current, 1);
    return done(code ? code : give_number(pending, 1));
}

int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *answer) {
    state s;
    gpu *g;
    int code = begin_device(&s, handle, &g);
    return done(code ? code : give_number(answer, is_mig(g)));
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {  /* zero where MIG is not supported or enabled */
    state s;
    gpu *g;
    int code = begin_device(&s, handle, &g);
    return done(code ? code : give_number(count, has_slices(&s, g) ? MAX_SLICES : 0));
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice) {
    state s;
    gpu *g;
    int code = begin_device(&s, handle, &g);
    if (!code && !has_slices(&s, g)) code = NOT_SUPPORTED;
    if (!code && index >= MAX_SLICES) code = INVALID_ARGUMENT;
    const gpu *found = code ? NULL : slice_at(&s, g, index);
    return done(code ? code : found ? give_handle(found, slice) : NOT_FOUND);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **handle) {
    state s;
    gpu *g;
    int code = begin_device(&s, slice, &g);
    if (code) return done(code);
    gpu *parent = is_mig(g) ? find(&s, g->parent) : NULL;
    return done(parent ? give_handle(parent, handle) : INVALID_ARGUMENT);
}
