/*
 * Penstock in C and C++: jobs, tensors and item tables. Licence: Apache-2.0.
 *
 * Made by cbindgen from crates/penstock-capi; do not edit. Start with docs/c.md.
 *
 * What holds for every call
 *   - It returns PENSTOCK_OK (0), or what went wrong; penstock_last_error() then says what was expected, what it got instead and
 *     what to do. A call that failed has changed nothing, unless its own text says otherwise.
 *   - No argument may be NULL unless its text says so; NULL is answered with PENSTOCK_BAD_ARGUMENT, not with a crash.
 *   - If a call fails, what it would have stored through pointer arguments is unchanged.
 *   - Every structure of options may be zeroed (`= {0}` in C, `{}` in C++): a field that is 0 or NULL has its default. Structures
 *     and arrays given to a call are copied; they need not outlive the call.
 *   - Texts are UTF-8 and end with a zero byte. Times are in seconds; sizes in bytes unless said otherwise.
 *   - Any thread may call anything at any time, except that penstock_finish and penstock_fail need that no other call with the
 *     same job, or anything of it, is in progress, and penstock_table_drop that none with the same table is. Declarations of one
 *     job run one after the other, and so do pushes and pulls of one tensor; no other call waits for another.
 *   - A finished job, and everything that belongs to it, must not be used again: this is not checked. Use of a dropped table, or
 *     of a request that is done, is detected.
 *   - Memory given to a penstock_start_... must stay valid, and must not be touched, until the request is done.
 *   - A child made by fork() must not use what its parent has opened.
 */


#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stddef.h>
#include <stdint.h>

/// The slack of the tensor or table itself.
#define PENSTOCK_SLACK_DEFAULT -1

/// No bound: whatever has arrived.
#define PENSTOCK_SLACK_UNBOUNDED -2

/// The default clock. Of a set or an add: iterations completed, plus one; what is made in iteration t is version t + 1. Of a
/// get: iterations completed.
#define PENSTOCK_CLOCK_AUTO UINT64_MAX

/// What a call returns. `penstock_last_error()` has the text.
typedef enum {
    /// Done.
    PENSTOCK_OK = 0,
    /// An argument is NULL, or a number is out of its range.
    PENSTOCK_BAD_ARGUMENT = 1,
    /// There is no such option, or it cannot have this value; environment variables are checked too.
    PENSTOCK_BAD_OPTION = 2,
    /// The environment says that there are several processes, but they have no way to find each other.
    PENSTOCK_NOT_UNDER_LAUNCHER = 3,
    /// A server or another process did not answer in time.
    PENSTOCK_DEADLINE_EXCEEDED = 4,
    /// A server or the manager could not be reached in time.
    PENSTOCK_CONNECT_TIMEOUT = 5,
    /// The job has another secret, or the certificate of a server or the manager is not trusted.
    PENSTOCK_AUTHENTICATION = 6,
    /// The rank is taken or outside the job's size.
    PENSTOCK_JOB_FULL = 7,
    /// The two sides do not understand each other: their versions differ.
    PENSTOCK_PROTOCOL = 8,
    /// The address that a server should listen on is taken.
    PENSTOCK_ADDRESS_IN_USE = 9,
    /// The job has ended for this worker.
    PENSTOCK_JOB_CLOSED = 10,
    /// The job has failed.
    PENSTOCK_JOB_FAILED = 11,
    /// The job has failed: a worker died, hung, or broke the protocol.
    PENSTOCK_WORKER_LOST = 12,
    /// The job has failed: a server is gone.
    PENSTOCK_SERVER_LOST = 13,
    /// The job has failed: workers pushed with different settings in one iteration.
    PENSTOCK_SETTINGS_CONFLICT = 14,
    /// Not every worker came to the barrier in time.
    PENSTOCK_BARRIER_TIMEOUT = 15,
    /// Worker 0 could not do what it was to do for all, such as penstock_load(): nothing was done, or only a part.
    PENSTOCK_FIRST_FAILED = 16,
    /// A name that no tensor or table may have.
    PENSTOCK_BAD_NAME = 20,
    /// A shape that no tensor may have, or a buffer of another size.
    PENSTOCK_BAD_SHAPE = 21,
    /// An element type that cannot be used here.
    PENSTOCK_BAD_DTYPE = 22,
    /// A setting of an optimizer, or a number of a declaration, is out of its range.
    PENSTOCK_BAD_SETTINGS = 23,
    /// It was declared differently before, by this worker or another.
    PENSTOCK_DECLARATION_CONFLICT = 24,
    /// It does not fit into the shared memory that a server may take.
    PENSTOCK_OUT_OF_MEMORY = 25,
    /// A second push of a tensor in one iteration.
    PENSTOCK_ALREADY_PUSHED = 30,
    /// A NaN or an infinity for a tensor that refuses them.
    PENSTOCK_NON_FINITE = 31,
    /// A pull was not fresh enough in time.
    PENSTOCK_PULL_TIMEOUT = 32,
    /// The previous push was not taken in time.
    PENSTOCK_LANE_TIMEOUT = 33,
    /// The tensor has no such row or element.
    PENSTOCK_UNKNOWN_ELEMENT = 34,
    /// The table has no such row, or this worker did not declare that it reads it.
    PENSTOCK_UNKNOWN_ROW = 40,
    /// This worker did not declare that it produces the row.
    PENSTOCK_NOT_PRODUCER = 41,
    /// Two workers declared that they produce one row of a table without a fold.
    PENSTOCK_TWO_PRODUCERS = 42,
    /// The clock is below the one that the row was set with before.
    PENSTOCK_CLOCK_BACKWARDS = 43,
    /// Only this worker can make the row fresh enough, and it has not done so.
    PENSTOCK_NEVER_SET = 44,
    /// A row was not fresh enough in time.
    PENSTOCK_GET_TIMEOUT = 45,
    /// A row was overwritten while it was read in place: discard what was read.
    PENSTOCK_TORN_VIEW = 46,
    /// A row occurs twice in one set.
    PENSTOCK_ROW_TWICE = 47,
    /// The table was dropped.
    PENSTOCK_TABLE_DROPPED = 48,
    /// The rows' producer was lost, and they were never current together: get them one at a time.
    PENSTOCK_ROWS_APART = 49,
    /// There is no such request: it is done, or its job has ended.
    PENSTOCK_UNKNOWN_REQUEST = 50,
    /// The system refused memory, a thread, a descriptor or a file.
    PENSTOCK_SYSTEM = 60,
    /// A bug in Penstock itself. Please report the error's text.
    PENSTOCK_INTERNAL = 61,
} penstock_status;

/// The type of elements.
typedef enum {
    /// float.
    PENSTOCK_F32 = 0,
    /// double.
    PENSTOCK_F64 = 1,
    /// IEEE 754 binary16. Tensors only.
    PENSTOCK_F16 = 2,
    /// The upper half of a float. Tensors only.
    PENSTOCK_BF16 = 3,
} penstock_dtype;

/// What a tensor does with the reduced contributions g of an iteration.
typedef enum {
    /// value += g.
    PENSTOCK_ADD = 0,
    /// value = g: an all-reduce.
    PENSTOCK_REPLACE = 1,
    /// Stochastic gradient descent: lr, momentum, dampening, weight_decay; PENSTOCK_NESTEROV.
    PENSTOCK_SGD = 2,
    /// Adagrad: lr, lr_decay, eps, weight_decay.
    PENSTOCK_ADAGRAD = 3,
    /// RMSprop: lr, alpha, eps, weight_decay, momentum; PENSTOCK_CENTERED.
    PENSTOCK_RMSPROP = 4,
    /// Adam, weight decay as an L2 penalty: lr, beta1, beta2, eps, weight_decay; PENSTOCK_AMSGRAD.
    PENSTOCK_ADAM = 5,
    /// Adam with decoupled weight decay: lr, beta1, beta2, eps, weight_decay; PENSTOCK_AMSGRAD.
    PENSTOCK_ADAMW = 6,
} penstock_rule;

/// Flags of an optimizer, to be added up.
typedef enum {
    /// Looks ahead along the momentum.
    PENSTOCK_NESTEROV = 1,
    /// Subtracts the squared mean gradient from the mean squared gradient.
    PENSTOCK_CENTERED = 2,
    /// Divides by the largest second moment so far.
    PENSTOCK_AMSGRAD = 4,
    /// Climbs instead of descending.
    PENSTOCK_MAXIMIZE = 8,
} penstock_optimizer_flag;

/// How the workers' contributions of an iteration become one.
typedef enum {
    /// Their sum, divided by the number of live workers.
    PENSTOCK_MEAN = 0,
    /// Their sum.
    PENSTOCK_SUM = 1,
} penstock_reduce;

/// What a table does if a row has several producers.
typedef enum {
    /// Every row has at most one producer; penstock_set() replaces its value.
    PENSTOCK_FOLD_NONE = 0,
    /// Any number of producers; penstock_add() adds to what the worker has contributed. A row is the sum of its producers'
    /// contributions, taken in rank order.
    PENSTOCK_FOLD_SUM = 1,
} penstock_fold;

/// When rows move to a consumer on another host. On one host nothing moves.
typedef enum {
    /// Every set is sent to the consumers at once.
    PENSTOCK_EAGER = 0,
    /// A row is fetched when a get or a prefetch needs it.
    PENSTOCK_LAZY = 1,
    /// A row is sent when a consumer's slack would be violated at its next clock.
    PENSTOCK_BOUNDED = 2,
} penstock_propagation;

/// What is sent now of what is due of a chunk; the rest is sent later, with what is due then.
typedef enum {
    /// All of it: no filter.
    PENSTOCK_EVERYTHING = 0,
    /// Elements beyond a bound: low, up, sufficient, relative, without_decay.
    PENSTOCK_DVF = 1,
    /// The largest elements, by magnitude: fraction.
    PENSTOCK_TOP_K = 2,
    /// Elements drawn at random, the same on every worker at the same clock: fraction, seed.
    PENSTOCK_RANDOM_K = 3,
    /// All elements, each as the nearest number of 16 bits; tensors of half precision go as they are.
    PENSTOCK_QUANTIZE_F16 = 4,
    /// Likewise, as bfloat16.
    PENSTOCK_QUANTIZE_BF16 = 5,
    /// All elements, each as a multiple from -127 to 127 of a power of two that 256 elements share.
    PENSTOCK_QUANTIZE_INT8 = 6,
    /// All elements: `threshold` where at least as much is due, its negative where at most that, else 0: threshold.
    PENSTOCK_QUANTIZE_2BIT = 7,
    /// All elements: their signs, with the mean magnitude of what is due of 1024 elements.
    PENSTOCK_QUANTIZE_1BIT = 8,
} penstock_filter_kind;

/// This process as one worker of a job.
typedef struct penstock_job penstock_job;

/// Something that was started: see penstock_start_get().
typedef struct penstock_request penstock_request;

/// A table of a job. The handle is freed with its job; the table too, or when it is dropped.
typedef struct penstock_table penstock_table;

/// A tensor of a job. Freed with its job.
typedef struct penstock_tensor penstock_tensor;

/// A row that is read in place.
typedef struct penstock_view penstock_view;

/// An option: one of those that `penstock run --help` lists.
typedef struct {
    /// Its name, such as "deadline". Underscores, no dashes.
    const char *name;
    /// Its value as text, in the units of `penstock run --help`, such as "120" or "64KiB".
    const char *value;
} penstock_option;

/// Options of a job. Zeroed: all from the environment, or else their defaults.
typedef struct {
    /// Options that count whatever the environment says. An option that is not among them has the value of its
    /// environment variable (PENSTOCK_DEADLINE and so on), else its default.
    const penstock_option *list;
    /// How many there are.
    size_t count;
} penstock_options;

/// Who this process is, and in which job. Zero all of it, set `struct_size`, then set what should differ from the default.
typedef struct {
    /// sizeof(penstock_init_options), so that a library may be newer than the program, or older.
    size_t struct_size;
    /// The job's name. NULL: PENSTOCK_JOB, or else "job". Processes of one launch may have several jobs at once, with different
    /// names.
    const char *job;
    /// The job's secret, 64 hexadecimal digits, if `servers` are named. NULL: PENSTOCK_SECRET.
    const char *secret;
    /// Where the servers are, in their order: each as `penstock-server` was told to listen, such as "tcp://10.0.0.1:7700", or the
    /// path of a socket. NULL: PENSTOCK_SERVERS, unless `job` is another job than the environment's: then rank 0 runs the server,
    /// and the others find it.
    const char *const *servers;
    /// How many.
    size_t server_count;
    /// This worker's number, from 0, if `size` is not 0.
    uint32_t rank;
    /// Workers of the job. 0: rank and size come from the environment.
    uint32_t size;
    /// Seconds to wait for the others, in this call and wherever no other timeout is given. 0: the option `deadline`.
    double deadline;
    /// Options that count whatever the environment says; see penstock_options.
    const penstock_option *list;
    /// How many.
    size_t count;
} penstock_init_options;

/// An optimizer: a rule, with its numbers. Zeroed: PENSTOCK_ADD.
///
/// penstock_sgd() and its like return the numbers that torch.optim has as defaults; change what should be otherwise. A number
/// or a flag that the rule does not have must be 0.
typedef struct {
    /// One of penstock_rule.
    uint32_t rule;
    /// Of penstock_optimizer_flag, added up.
    uint32_t flags;
    /// Learning rate, 0 or above.
    double lr;
    /// Factor on the old direction, 0 or above; 0: no such state is kept.
    double momentum;
    /// Part of the gradient that does not enter the direction, 0 or above; 0 with PENSTOCK_NESTEROV.
    double dampening;
    /// Weight decay, 0 or above.
    double weight_decay;
    /// The rate in step n is lr / (1 + (n - 1) * lr_decay); 0 or above.
    double lr_decay;
    /// Decay of RMSprop's running mean, 0 or above and below 1.
    double alpha;
    /// Decay of Adam's running mean of the gradient, 0 or above and below 1.
    double beta1;
    /// Decay of Adam's running mean of its square, 0 or above and below 1.
    double beta2;
    /// Added to the root, 0 or above.
    double eps;
} penstock_optimizer;

/// A filter. Zeroed: everything is sent. A number that its kind does not have must be 0.
///
/// What is held back of a push is added to this worker's next push of the tensor; what is held back of the value is the difference
/// between the servers' and what readers see, and waits for the next push of any worker. NaN and infinity are sent at once. What each
/// kind does, holds and costs: docs/filters.md.
typedef struct {
    /// One of penstock_filter_kind.
    uint32_t kind;
    /// Not 0: `low` and `up` are multiplied by the root mean square of what is due of the chunk.
    uint32_t relative;
    /// Not 0: the bound stays. 0: it is divided by the square root of t, the clock + 1; for values, the version.
    uint32_t without_decay;
    /// For later versions: 0.
    uint32_t reserved;
    /// An element waits while what is due of it is within this: 0 or above, in units of what is pushed; for values, of those.
    double low;
    /// The bound where the network presses the sender: `low` or above. 0: `low`, always.
    double up;
    /// The bandwidth that suffices, in bytes a second: while each connection of the sender has it, the bound is `low`, else `up`. 0:
    /// the bound rises while sending takes a noticeable part of the time.
    double sufficient;
    /// Which part of a chunk's elements is sent: above 0, at most 1.
    double fraction;
    /// In units of what is pushed: above 0. 0: 0.5, as in MXNet.
    double threshold;
    /// What is drawn: 0 to 2^53 - 1.
    uint64_t seed;
    /// For later versions: 0.
    uint64_t reserved_too[2];
} penstock_filter;

/// A tensor's filters, each direction for itself. Zeroed: everything is sent both ways.
typedef struct {
    /// What of this worker's pushes is sent to the servers, on their own host too.
    penstock_filter push;
    /// What of the value workers see, on the servers' host too. By those that quantize, what they have of an element moves towards the
    /// value. Not with PENSTOCK_REPLACE.
    penstock_filter broadcast;
} penstock_filters;

/// The declaration of a tensor. Every worker makes the same. Zero all of it, then set what should differ from the default.
typedef struct {
    /// Its key: 1 to 512 bytes of UTF-8 without control characters. Not NULL.
    const char *name;
    /// One of penstock_dtype. 0: float.
    uint32_t dtype;
    /// Dimensions of the shape. 0: a scalar.
    uint32_t dimensions;
    /// Elements along each dimension, at least 1; those along the last dimension are contiguous.
    const uint64_t *shape;
    /// Its first value: as many elements as the shape has. Rank 0's counts. NULL: zeros.
    const void *value;
    /// What it does with contributions. Zeroed: adds them.
    penstock_optimizer optimizer;
    /// "bsp", "ssp:SLACK", "ssp:auto:MIN:MAX" (the slack adapts to waiting, between the two) or "asp". NULL: the job's option
    /// `consistency`, which is "bsp" unless set.
    const char *consistency;
    /// One of penstock_reduce. 0: the mean.
    uint32_t reduce;
    /// Not 0: contributions that hold a NaN or an infinity are refused.
    uint32_t refuse_nonfinite;
    /// Factor on the reduced contribution. 0: 1.
    double rescale;
    /// Then each element is clipped to [-clip, clip]. 0: no clipping.
    double clip;
    /// Seconds that this and every later call for the tensor may wait. 0: the option `deadline`.
    double timeout;
    /// "pull" (workers on other hosts fetch the value) or "broadcast" (servers send them what is new; under "ssp" nobody sees
    /// updates before they are in a version, and under "asp" a worker's own come back with the others': see `exact` of penstock_call
    /// and penstock_flush()), or, under "bsp", "update" (as "broadcast", but servers send the sum that the optimizer was given, and
    /// each worker applies that to the same bits). "auto": "broadcast" under "bsp" where the job has the option `tree`,
    /// and under "ssp" where a filter of broadcasts may hold something back; else "pull".
    /// NULL: "pull".
    const char *propagation;
    /// What of pushes, and of the value, is sent now, and what later. NULL: all of it.
    const penstock_filters *filters;
    /// Not 0: pushes are mostly of some rows or elements (penstock_push_rows()): between hosts, contributions and values travel as the
    /// elements that differ from zero and from what was sent before, where that is cheaper.
    uint32_t sparse;
    /// Of two dimensions: the largest rank with which penstock_push_factors() sends factors, in place of their product, to servers on
    /// other hosts; 1024 at most. 0: none.
    uint32_t low_rank;
    /// For later versions: 0.
    uint64_t reserved;
} penstock_tensor_options;

/// More arguments of a single call. Zero all of it, set `struct_size`, then set what should differ from the default.
typedef struct {
    /// sizeof(penstock_call).
    size_t struct_size;
    /// Seconds that this call may wait. 0: as the tensor or the table says.
    double timeout;
    /// NULL, or where versions are stored. A get stores that of each value, `count` of them. A pull stores one: how many updates
    /// of each live worker the value includes at least. A push stores one: the iteration that the contribution belongs to.
    ///
    /// If a producer keeps setting rows while several are read, the version of one may be less than its value's, never more. The
    /// rows of a worker that has left are at 2^63 - 1: nothing newer will come.
    uint64_t *versions;
    /// For a push: not 0 if another push of this tensor follows in this iteration. It is added to what is in the lane; the last
    /// one, with 0, sends the sum.
    uint32_t more;
    /// For a pull that copies: not 0 to read the value itself, with this worker's pushes. A filter of broadcasts may hold back something
    /// of it, and what is broadcast under "ssp" or "asp" comes later. It takes memory of the value's size, and all of the value comes
    /// from other hosts: for evaluations and checkpoints. What a filter of pushes holds back is in no value: penstock_flush().
    uint32_t exact;
} penstock_call;

/// When a filter that follows the network changed its bound, and why.
typedef struct {
    /// From about where on: this worker's clock; of values, a version.
    uint64_t at;
    /// Which part of the way from `low` to `up`: 0, a quarter, half, three quarters or 1.
    double share;
    /// For which part of the time before the busiest connection was at work, by its bytes and its rate.
    double busy;
    /// Bytes a second that the slowest connection made; 0 if that was not known.
    double slowest;
    /// Whose filter: UINT32_MAX: of this worker's pushes; else of the values that this server sends,
    uint32_t server;
    /// with this shard of it.
    uint32_t shard;
} penstock_pressed;

/// Rows `first` to `end` - 1.
typedef struct {
    /// The first row.
    uint64_t first;
    /// The row after the last one.
    uint64_t end;
} penstock_range;

/// The declaration of a table. Every worker makes the same, except for the rows that it produces and consumes. Zero all of it,
/// then set what should differ from the default.
typedef struct {
    /// Its key: 1 to 512 bytes of UTF-8 without control characters. Not NULL.
    const char *name;
    /// Number of rows, which are numbered from 0: 1 to 2^63. Rows that nobody produces or consumes cost nothing.
    uint64_t rows;
    /// Bytes of a row, at least 1.
    uint32_t row_bytes;
    /// One of penstock_dtype: the type of elements. Only PENSTOCK_FOLD_SUM needs it: PENSTOCK_F32 or PENSTOCK_F64.
    uint32_t dtype;
    /// Rows that this worker sets: a list, in any order. NULL: none.
    const uint64_t *produce;
    /// How many.
    size_t produce_count;
    /// Rows that this worker sets: ranges, in addition to the list. NULL: none.
    const penstock_range *produce_ranges;
    /// How many ranges.
    size_t produce_range_count;
    /// Rows that this worker reads: a list. It may always read those that it produces. NULL: none.
    const uint64_t *consume;
    /// How many.
    size_t consume_count;
    /// Rows that this worker reads: ranges, in addition to the list. NULL: none.
    const penstock_range *consume_ranges;
    /// How many ranges.
    size_t consume_range_count;
    /// One of penstock_fold. 0: one producer for each row.
    uint32_t fold;
    /// One of penstock_propagation. 0: eager.
    uint32_t propagation;
    /// Slack of reads that do not give one: 0 or above, or PENSTOCK_SLACK_UNBOUNDED. 0: none.
    int64_t slack;
    /// Seconds that this and every later call for the table may wait. 0: the option `deadline`.
    double timeout;
    /// Least slack, if it is adaptive: see `adaptive_max`.
    uint32_t adaptive_min;
    /// Not 0: the slack of reads that do not give one adapts to waiting, between `adaptive_min` and this. Then `slack` is 0.
    uint32_t adaptive_max;
    /// For later versions: 0.
    uint64_t reserved[3];
} penstock_table_options;

/// What a worker has done since it joined. Set `struct_size` before the call.
typedef struct {
    /// sizeof(penstock_job_counters).
    size_t struct_size;
    /// Bytes of contributions that left.
    uint64_t pushed_bytes;
    /// Bytes of values that were copied out or read in place.
    uint64_t pulled_bytes;
    /// Contributions that left.
    uint64_t pushes;
    /// Pulls.
    uint64_t pulls;
    /// Seconds spent waiting for the others.
    double waited;
    /// The most iterations that a pull lagged behind.
    uint64_t max_staleness;
    /// Copies of chunks that were repeated because their server was writing.
    uint64_t copies_retried;
    /// The largest slack in force, where it is adaptive.
    uint64_t slack;
} penstock_job_counters;

/// What a worker has done with a table since it declared it. Set `struct_size` before the call.
typedef struct {
    /// sizeof(penstock_table_counters).
    size_t struct_size;
    /// Calls of set and add.
    uint64_t sets;
    /// Rows that they wrote.
    uint64_t rows_set;
    /// Calls of get.
    uint64_t gets;
    /// Rows that they returned.
    uint64_t rows_got;
    /// Seconds that gets waited.
    double waited;
    /// Copies that were repeated because the producer overtook them.
    uint64_t retries;
    /// The most clocks that a row lagged behind what a get without slack would ask for.
    uint64_t max_staleness;
    /// Bytes sent to other hosts.
    uint64_t sent_bytes;
    /// Bytes received from other hosts.
    uint64_t received_bytes;
    /// The current slack of a get that does not give one; PENSTOCK_SLACK_UNBOUNDED for no bound.
    int64_t slack;
} penstock_table_counters;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// The version of the library, such as "0.1.0". Never NULL; always valid.
const char *penstock_version(void);

/// The text of this thread's last failed call: what was expected, what it got instead and, after "hint: ", what to do.
///
/// Never NULL: "" if no call of this thread has failed yet. A call that succeeds does not change the text. Valid until this
/// thread's next call that fails, or its end.
const char *penstock_last_error(void);

/// Joins the job that this process was started for; alone, starts one with a server inside this process.
///
/// The environment decides, as for `penstock.init()` in Python:
///
///   - PENSTOCK_SERVERS names servers (`penstock run` sets it): those.
///   - PENSTOCK_MANAGER names a manager: the servers that it names for the job in PENSTOCK_JOB.
///   - mpirun, mpiexec, srun or torchrun started several processes, all on this host: rank 0 runs a server, and the others find
///     it. All processes must make the call; each returns when all have. MPI need not be initialized.
///   - Otherwise this is a job of one worker.
///
/// If the launcher's processes are on several hosts, start servers there (`penstock-server`) and give every process
/// PENSTOCK_SERVERS and PENSTOCK_SECRET, or let a manager name them.
///
/// @param options  NULL: as if zeroed.
/// @param job      Where the job is stored; free it with penstock_finish().
///
/// Waits at most as long as the option `deadline` says (60 s by default). Errors: PENSTOCK_BAD_OPTION,
/// PENSTOCK_NOT_UNDER_LAUNCHER, PENSTOCK_DEADLINE_EXCEEDED (the text names the ranks that did not come),
/// PENSTOCK_CONNECT_TIMEOUT, PENSTOCK_AUTHENTICATION, PENSTOCK_JOB_FULL, PENSTOCK_JOB_FAILED, PENSTOCK_PROTOCOL,
/// PENSTOCK_SYSTEM.
penstock_status penstock_init(const penstock_options *options,
                              penstock_job **job);

/// Joins the job that the program names: rank, size, servers and options are given in a structure. What it leaves open is as
/// penstock_init() finds it.
///
/// So an MPI communicator, or any subset of the processes that were started together on one host, can be a job:
///
///     penstock_init_options options = {0};
///     options.struct_size = sizeof options;
///     options.job = "left half";
///     MPI_Comm_rank(half, &rank);
///     MPI_Comm_size(half, &size);
///     options.rank = (uint32_t)rank;
///     options.size = (uint32_t)size;
///     penstock_init_with(&options, &job);
///
/// Without servers the job's processes find each other by its name: those of one launch or, without a launcher, those of one
/// parent process. Every rank from 0 to size - 1 must make the call; jobs at the same time need different names. With `size` 1
/// and without servers it is a job of this process alone.
///
/// @param options  Not NULL.
/// @param job      Where the job is stored; free it with penstock_finish().
///
/// Waits at most `deadline`. Errors: PENSTOCK_BAD_ARGUMENT (`struct_size` is not set, or is larger than this library's and a
/// member that it does not know is not 0), PENSTOCK_JOB_FULL (the rank is outside the size), and those of penstock_init().
penstock_status penstock_init_with(const penstock_init_options *options,
                                   penstock_job **job);

/// This worker's number, 0 to penstock_size() - 1. UINT32_MAX if `job` is NULL.
uint32_t penstock_rank(const penstock_job *job);

/// Workers that the job was made for. 0 if `job` is NULL.
uint32_t penstock_size(const penstock_job *job);

/// Iterations that this worker has completed: its clock. 0 if `job` is NULL.
uint64_t penstock_iteration(const penstock_job *job);

/// Completes an iteration.
///
/// A tensor that was not pushed in it is skipped; a row that was not set in it counts as unchanged. Waits until every push that
/// was started has left, so that it counts for the iteration in which it was started; at most as long as the option `deadline`
/// says.
///
/// @param clock  NULL, or where the new clock is stored: iterations that this worker has completed.
///
/// Errors: PENSTOCK_DEADLINE_EXCEEDED (a push that was started has not left in time: the clock is as it was), that of a push that was
/// started and failed, if its request was neither tested nor waited for (once, and of several in as many calls; the clock is as it was),
/// PENSTOCK_JOB_CLOSED, PENSTOCK_JOB_FAILED, PENSTOCK_WORKER_LOST, PENSTOCK_SERVER_LOST, PENSTOCK_SETTINGS_CONFLICT.
penstock_status penstock_clock(const penstock_job *job,
                               uint64_t *clock);

/// Waits until every live worker is here.
///
/// @param timeout  Seconds to wait; 0: the option `deadline`.
///
/// Errors: PENSTOCK_BARRIER_TIMEOUT (the text names the ranks that did not come), and those of penstock_clock().
penstock_status penstock_barrier(const penstock_job *job,
                                 double timeout);

/// Leaves the job, and frees it with all its tensors and tables. The other workers carry on without this one.
///
/// What a filter of pushes still holds back is gone: call penstock_flush() before. When this returns PENSTOCK_OK, the servers have
/// taken everything that this worker pushed and set, or the job had failed before
/// and an earlier call reported that. It waits for that as long as the option `deadline` says; a job that has failed is left at
/// once. The job is freed in every case.
///
/// If mpirun, srun or torchrun started the job, rank 0 runs the server: its call returns when all others have left. So nobody may
/// wait for rank 0 before this call, for example in an MPI barrier; the right place is before MPI_Finalize.
///
/// @param job  NULL: nothing is done. In a child of fork() nothing is done either: the job is the parent's (PENSTOCK_JOB_CLOSED).
///
/// A process that ends without this call counts as lost, and its job stops with an error that names it.
///
/// Errors: PENSTOCK_DEADLINE_EXCEEDED (a push that was started has not left in time, or a server did not take everything; the
/// others are told that this worker failed); that of a push that was started and failed, and that no call has reported (the
/// others are told, too); PENSTOCK_JOB_FAILED, PENSTOCK_WORKER_LOST, PENSTOCK_SERVER_LOST, PENSTOCK_SETTINGS_CONFLICT (the job
/// has failed, and no call of this worker has reported that before).
penstock_status penstock_finish(penstock_job *job);

/// Leaves the job because of an error, and frees it as penstock_finish() does. The other workers are told, and stop or carry on
/// as the option `on_worker_loss` says.
///
/// @param job  NULL: nothing is done.
/// @param why  The error, which the others are told. NULL: they are not told what it was.
penstock_status penstock_fail(penstock_job *job,
                              const char *why);

/// Stochastic gradient descent with this learning rate.
penstock_optimizer penstock_sgd(double lr);

/// Adagrad with this learning rate, eps 1e-10.
penstock_optimizer penstock_adagrad(double lr);

/// RMSprop with this learning rate, alpha 0.99, eps 1e-8.
penstock_optimizer penstock_rmsprop(double lr);

/// Adam with this learning rate, betas 0.9 and 0.999, eps 1e-8.
penstock_optimizer penstock_adam(double lr);

/// AdamW with this learning rate, betas 0.9 and 0.999, eps 1e-8, weight decay 0.01.
penstock_optimizer penstock_adamw(double lr);

/// The value-bounded filter with this bound, which is divided by the square root of t (Parameter Flow, equations 10 and 11).
penstock_filter penstock_dvf(double low);

/// The filter that sends this part of the elements: the largest.
penstock_filter penstock_top_k(double fraction);

/// The filter that sends this part of the elements, drawn at random.
penstock_filter penstock_random_k(double fraction, uint64_t seed);

/// Filters that hold nothing back while the network keeps up; where it does not, what matters least waits, in both directions. As
/// "auto" in Python: `low` 0, `up` 2, relative, without decay.
penstock_filters penstock_auto(void);

/// Declares a tensor. Every worker makes the same declaration; rank 0's value counts.
///
/// Returns after this worker's own declaration; the first pull waits for rank 0's. Repeating the declaration gives the same
/// tensor, with its value unchanged. Shared memory: the value and the optimizer's state once, and a lane of the value's size for
/// each worker; what filters, `sparse` and `low_rank` take is in docs/filters.md, docs/sparse.md and docs/factors.md.
///
/// @param tensor  Where the tensor is stored. It belongs to the job: penstock_finish() frees it.
///
/// Errors: PENSTOCK_BAD_NAME, PENSTOCK_BAD_SHAPE, PENSTOCK_BAD_DTYPE, PENSTOCK_BAD_SETTINGS (the optimizer's or a filter's, or
/// `low_rank`), PENSTOCK_BAD_OPTION (the consistency or the propagation), PENSTOCK_DECLARATION_CONFLICT, PENSTOCK_OUT_OF_MEMORY, PENSTOCK_DEADLINE_EXCEEDED, PENSTOCK_JOB_CLOSED.
penstock_status penstock_tensor_create(const penstock_job *job,
                                       const penstock_tensor_options *options,
                                       penstock_tensor **tensor);

/// Bytes of the tensor's value. 0 if `tensor` is NULL.
size_t penstock_tensor_bytes(const penstock_tensor *tensor);

/// Contributes to the iteration that this worker is in.
///
/// Returns as soon as the contribution is in the worker's lane; `data` may be changed at once.
///
/// @param data   The contribution, of the tensor's shape and dtype. NULL: what is in the lane (see penstock_lane()).
/// @param bytes  Its size, penstock_tensor_bytes(); 0 if `data` is NULL.
///
/// Waits until requests that were started before are done and the servers have taken the worker's previous contribution. Errors:
/// PENSTOCK_BAD_SHAPE, PENSTOCK_BAD_ARGUMENT (`data` is NULL, and what is in the lane was lost when its iteration ended, or was
/// loaded), PENSTOCK_DEADLINE_EXCEEDED (requests or another thread's call were not done in time), PENSTOCK_ALREADY_PUSHED, PENSTOCK_NON_FINITE, PENSTOCK_LANE_TIMEOUT (the text names the ranks that are waited for),
/// PENSTOCK_PULL_TIMEOUT (rank 0 has given no value), and those of penstock_clock().
penstock_status penstock_push(const penstock_tensor *tensor,
                              const void *data,
                              size_t bytes);

/// penstock_push() with its own timeout, in parts (`more`), and with the clock that it is stamped with.
///
/// @param call  NULL, or see penstock_call: `timeout`, `more`, `versions` (one).
///
/// Errors: as penstock_push().
penstock_status penstock_push_with(const penstock_tensor *tensor,
                                   const void *data,
                                   size_t bytes,
                                   const penstock_call *call);

/// The lane: memory of the tensor's shape that the servers of this host read. A contribution that is written there and pushed with
/// NULL is not copied for them, and once for servers of other hosts.
///
/// @param lane  Where its address is stored. It is the same every time, and valid until penstock_finish(). Its content may be
///              changed from this call until the next push, and is undefined at first. What was written there before a load is
///              no contribution: ask for it once more before it is filled and pushed with NULL. A filter of pushes leaves there
///              what it sends.
///
/// Waits until the servers have taken what is in it. Errors: PENSTOCK_BAD_OPTION (a part that was pushed with `more` waits in it,
/// and would be lost: push data, which is added to it, or NULL, which sends it), and as penstock_push().
penstock_status penstock_lane(const penstock_tensor *tensor,
                              void **lane);

/// penstock_lane() with its own timeout.
///
/// @param call  NULL, or see penstock_call: `timeout`.
penstock_status penstock_lane_with(const penstock_tensor *tensor,
                                   void **lane,
                                   const penstock_call *call);

/// Copies the value, as fresh as the tensor's consistency asks for.
///
/// At position t (the clock, plus one after a push in this iteration) with slack s, it includes every update stamped below t - s
/// of every live worker, and all of this worker's own, unless it is broadcast under "ssp" or "asp"; but for what a filter of broadcasts
/// holds back (`exact` of penstock_call reads that too).
///
/// @param out    Where it is copied to.
/// @param bytes  Its size, penstock_tensor_bytes().
/// @param slack  Iterations that this one read may lag behind: 0 or above, PENSTOCK_SLACK_DEFAULT (the tensor's own) or
///               PENSTOCK_SLACK_UNBOUNDED.
///
/// Waits if it has to, after requests that were started before. Errors: PENSTOCK_BAD_SHAPE, PENSTOCK_BAD_OPTION (the slack),
/// PENSTOCK_PULL_TIMEOUT (the text names the ranks that are waited for; the content of `out` is undefined),
/// PENSTOCK_DEADLINE_EXCEEDED (requests or another thread's call were not done in time), and those of penstock_clock().
penstock_status penstock_pull_into(const penstock_tensor *tensor,
                                   void *out,
                                   size_t bytes,
                                   int64_t slack);

/// penstock_pull_into() with its own timeout, the value's version, or of the value itself, whatever filters of broadcasts hold back (`exact`).
///
/// @param call  NULL, or see penstock_call: `timeout`, `versions` (one), `exact`.
///
/// Errors: as penstock_pull_into(); with `exact`, PENSTOCK_DEADLINE_EXCEEDED also if a server did not send it in time.
penstock_status penstock_pull_into_with(const penstock_tensor *tensor,
                                        void *out,
                                        size_t bytes,
                                        int64_t slack,
                                        const penstock_call *call);

/// Gives access to the value in place, as fresh as penstock_pull_into() would copy it.
///
/// Under "bsp" without slack that is the servers' own memory if they are on this host: nothing is copied, and the value does not
/// change until this worker's next push of the tensor, or a flush of what a filter of broadcasts holds back. Otherwise it is a copy of this worker's own, which does not change until
/// its next pull of the tensor.
///
/// Unless the option `lend` is `off`, other pages with the same values may be mapped at that address: do not pin that memory or
/// register it with a device (`cudaHostRegister`, RDMA, io_uring), as these would keep the old pages; copy it.
///
/// @param value  Where its address is stored. Not to be written to; valid until penstock_finish().
/// @param slack  As for penstock_pull_into().
///
/// Waits if it has to. Errors: as penstock_pull_into().
penstock_status penstock_pull(const penstock_tensor *tensor,
                              const void **value,
                              int64_t slack);

/// penstock_pull() with its own timeout, and the value's version.
///
/// @param call  NULL, or see penstock_call: `timeout`, `versions` (one).
///
/// Errors: as penstock_pull().
penstock_status penstock_pull_with(const penstock_tensor *tensor,
                                   const void **value,
                                   int64_t slack,
                                   const penstock_call *call);

/// Overwrites the value, for instance to continue from a checkpoint. Every worker of the job makes the call; rank 0's value
/// counts.
///
/// The optimizer's state and its step count stay. Contributions that workers made before go into what is overwritten, except
/// those that under BSP still wait for another worker's: they are folded into what was loaded. Every pull afterwards sees the new
/// value.
///
/// @param job      The tensor's job.
/// @param value    On rank 0 the value, of the tensor's shape and dtype; ignored elsewhere.
/// @param bytes    Its size, penstock_tensor_bytes().
/// @param timeout  Seconds to wait for the others to call; 0: the tensor's. When they have, the value goes whole, however little is
///                 left: each wait behind it has the job's deadline.
///
/// Errors: PENSTOCK_BAD_SHAPE (on rank 0), PENSTOCK_BAD_OPTION (this worker has pushed a part of its contribution, with `more`, and
/// not the last: the others wait for it), PENSTOCK_BARRIER_TIMEOUT (the text names the ranks that did not come: the value is as it was,
/// or, after the job's deadline, rank 0 had not come to the end; the call again is the same load), PENSTOCK_FIRST_FAILED (not on rank 0, whose call has failed: the text
/// has its error, and the value is as it was or a part of it is new; call it again on every rank), and those of penstock_clock().
penstock_status penstock_load(const penstock_job *job,
                              const penstock_tensor *tensor,
                              const void *value,
                              size_t bytes,
                              double timeout);

/// Sets the learning rate, from this worker's next push on; a push that was started before keeps the rate that was set then.
/// Under "bsp" all workers must set the same.
///
/// @param lr  0 or above.
///
/// Errors: PENSTOCK_BAD_SETTINGS (the rate is out of its range, or the tensor's rule has none).
penstock_status penstock_set_lr(const penstock_tensor *tensor,
                                double lr);

/// Contributes to some rows: places along the tensor's first dimension. It is what a push of the whole array would be, with zeros in
/// all other rows; where zeros change nothing by the tensor's rule, only chunks that are touched move (docs/sparse.md).
///
/// @param rows    Rows from 0 on, in any order; what is named twice is summed.
/// @param count   How many. 0: a push of zeros.
/// @param values  Their contributions, one row after the other, of the tensor's dtype. All may be changed at once.
/// @param bytes   The values' size: `count` rows'.
/// @param call    NULL, or see penstock_call: `timeout`, `more`, `versions` (one).
///
/// Afterwards the lane holds no contribution: ask for it once more before it is filled and pushed with NULL. Errors:
/// PENSTOCK_UNKNOWN_ELEMENT (the tensor has no such row), PENSTOCK_BAD_SHAPE, and as penstock_push().
penstock_status penstock_push_rows(const penstock_tensor *tensor,
                                   const uint64_t *rows,
                                   size_t count,
                                   const void *values,
                                   size_t bytes,
                                   const penstock_call *call);

/// The same of single elements.
///
/// @param indices  Elements from 0 on, counted as they stand in memory, over all dimensions; in any order, and what is named twice is
///                 summed.
/// @param count, values, bytes, call  As for penstock_push_rows(), a value for each.
///
/// Errors: as penstock_push_rows().
penstock_status penstock_push_elements(const penstock_tensor *tensor,
                                       const uint64_t *indices,
                                       size_t count,
                                       const void *values,
                                       size_t bytes,
                                       const penstock_call *call);

/// Contributes the product u v to a tensor of two dimensions, (m, n).
///
/// It is what a push of the product would be; but to servers on other hosts it is u and v that are sent, where the tensor was
/// declared with a `low_rank` of `rank` or more and that is shorter (docs/factors.md). Each element is summed in the order of the
/// rank, in double for double and in float for all else, and rounded once.
///
/// @param u        Of shape (m, rank), of the tensor's dtype, rows one after the other. Both may be changed at once.
/// @param u_bytes  Its size.
/// @param v        Of shape (rank, n), likewise.
/// @param v_bytes  Its size.
/// @param rank     Columns of u, and rows of v. 0: a push of zeros.
/// @param call     NULL, or see penstock_call: `timeout`, `more`, `versions` (one).
///
/// Afterwards the lane holds no contribution, as after penstock_push_rows(). Errors: PENSTOCK_BAD_SHAPE (the tensor has not two
/// dimensions, or these are not its factors), and as penstock_push().
penstock_status penstock_push_factors(const penstock_tensor *tensor,
                                      const void *u,
                                      size_t u_bytes,
                                      const void *v,
                                      size_t v_bytes,
                                      size_t rank,
                                      const penstock_call *call);

/// Copies some rows of the value, as fresh as penstock_pull_into() would copy all of it. Only chunks that they touch are looked at;
/// of servers on other hosts, fetched and waited for.
///
/// @param rows   Rows from 0 on, in any order, also some twice.
/// @param count  How many. 0: nothing is waited for.
/// @param out    Where they are copied to, one after the other.
/// @param bytes  Its size: `count` rows'.
/// @param slack  As for penstock_pull_into().
/// @param call   NULL, or see penstock_call: `timeout`, `versions` (one), `exact`.
///
/// Errors: PENSTOCK_UNKNOWN_ELEMENT (the tensor has no such row; `out` is as it was), PENSTOCK_BAD_SHAPE, and as
/// penstock_pull_into_with().
penstock_status penstock_pull_rows(const penstock_tensor *tensor,
                                   const uint64_t *rows,
                                   size_t count,
                                   void *out,
                                   size_t bytes,
                                   int64_t slack,
                                   const penstock_call *call);

/// The same of single elements.
///
/// @param indices  Elements from 0 on, counted as they stand in memory, over all dimensions; in any order, also some twice.
/// @param count, out, bytes, slack, call  As for penstock_pull_rows().
///
/// Errors: as penstock_pull_rows().
penstock_status penstock_pull_elements(const penstock_tensor *tensor,
                                       const uint64_t *indices,
                                       size_t count,
                                       void *out,
                                       size_t bytes,
                                       int64_t slack,
                                       const penstock_call *call);

/// Sends what the tensor's filters hold back, all of it.
///
/// With a filter of pushes that is a push like any other, which brings nothing new: it is the iteration's only one, or the last after
/// some with `more`; under "bsp" every worker makes the same call, and the servers apply their rule once more. What is held back of
/// pushes is not in the value: flush before an evaluation or a checkpoint that should have it, and before penstock_finish(), after
/// which it is gone.
///
/// With a filter of broadcasts, or for a value that is broadcast under "ssp" or "asp", every worker of the job makes the call, as with
/// penstock_load(): when it returns, each of them reads the value itself, with all that has been folded. Under "bsp" all make it in
/// the same iteration, in which all of them have pushed, or none.
///
/// A call that failed may be made again. In one iteration each flush after the first pushes nothing more.
///
/// @param job   The tensor's job.
/// @param call  NULL, or see penstock_call: `timeout`, `versions` (one, the iteration that the push belongs to; UINT64_MAX where nothing
///              was pushed, as the tensor has no filter of pushes).
///
/// Errors: PENSTOCK_ALREADY_PUSHED (a push without `more` was made in this iteration, which was no flush), PENSTOCK_LANE_TIMEOUT,
/// PENSTOCK_BARRIER_TIMEOUT (the text names the ranks that did not come; what was pushed, was), PENSTOCK_FIRST_FAILED,
/// PENSTOCK_DEADLINE_EXCEEDED (requests or another thread's call were not done in time), and those of penstock_clock().
penstock_status penstock_flush(const penstock_job *job,
                               const penstock_tensor *tensor,
                               const penstock_call *call);

/// What the tensor's filter of pushes holds back of this worker's. It is counted anew each time, in as long as a push takes.
///
/// @param norm      Set to its Euclidean norm.
/// @param elements  Set to how many elements there are of which something is held back. Both 0 without such a filter.
///
/// Waits until requests that were started before are done. Errors: PENSTOCK_DEADLINE_EXCEEDED (they, or another thread's call, were not
/// done in time), PENSTOCK_LANE_TIMEOUT, and those of penstock_clock().
penstock_status penstock_held_back(const penstock_tensor *tensor,
                                   double *norm,
                                   uint64_t *elements);

/// How the tensor's filters have followed the network, if they do, as those with `up`: their last changes, at most 16 of each; first
/// of this worker's pushes, then of the values, by server and shard, the oldest first. The servers are asked for theirs.
///
/// @param changes  Where they are stored, as many as there is room for.
/// @param room     For how many. 0: `changes` may be NULL.
/// @param count    Set to how many there are. 0: `low` so far, or no filter follows the network.
/// @param timeout  Seconds to wait; 0: the tensor's.
///
/// Errors: PENSTOCK_DEADLINE_EXCEEDED (a server did not answer, or requests or another thread's call were not done in time),
/// PENSTOCK_LANE_TIMEOUT, and those of penstock_clock().
penstock_status penstock_pressure(const penstock_tensor *tensor,
                                  penstock_pressed *changes,
                                  size_t room,
                                  size_t *count,
                                  double timeout);

/// Declares a table. Every worker of the job declares every table; it may declare that it produces and consumes no rows.
///
/// Rows start as zeros with version 0. A row's version is the clock of the newest set or add; a worker that has completed t
/// iterations has all its rows at version t or above: a row that it did not set counts as unchanged. Memory: the rows that
/// this worker produces or consumes. Returns when all workers have declared it.
///
/// Repeating the declaration gives the same table; a different one with its name is PENSTOCK_DECLARATION_CONFLICT, and the text
/// names what differs. If a worker was late (PENSTOCK_DEADLINE_EXCEEDED), all workers whose call failed may repeat it.
///
/// @param table  Where the table is stored. It belongs to the job: penstock_finish() frees it.
///
/// Errors: PENSTOCK_BAD_NAME, PENSTOCK_BAD_SHAPE, PENSTOCK_BAD_DTYPE, PENSTOCK_BAD_OPTION (the slack), PENSTOCK_UNKNOWN_ROW,
/// PENSTOCK_TWO_PRODUCERS, PENSTOCK_DECLARATION_CONFLICT, PENSTOCK_OUT_OF_MEMORY, PENSTOCK_DEADLINE_EXCEEDED (the text names
/// the ranks that have not declared it), PENSTOCK_TABLE_DROPPED (others have not dropped a table of this name yet),
/// PENSTOCK_JOB_CLOSED.
penstock_status penstock_table_create(const penstock_job *job,
                                      const penstock_table_options *options,
                                      penstock_table **table);

/// Drops a table. Every worker drops it, as every worker declared it; the call returns when all have.
///
/// Then its memory is free, and so is its name, for another table. Only penstock_finish() frees its handle; from now on every
/// call with it returns PENSTOCK_TABLE_DROPPED, even if the others are late: then repeat this call to continue waiting. Until
/// they drop it too, the others read what this worker has set so far, and do not wait for anything newer from it. Views of it
/// stay valid.
///
/// No other call for the table may be in progress in another thread; requests for it are waited for.
///
/// @param timeout  Seconds to wait; 0: the option `deadline`.
///
/// Errors: PENSTOCK_DEADLINE_EXCEEDED (the text names the ranks that have not dropped it), PENSTOCK_TABLE_DROPPED (it was dropped
/// before), and those of penstock_clock().
penstock_status penstock_table_drop(penstock_table *table,
                                    double timeout);

/// Bytes of a row. 0 if `table` is NULL.
size_t penstock_row_bytes(const penstock_table *table);

/// Sets rows that this worker produces, all together: a reader sees all of them or none.
///
/// @param rows    The rows, each once.
/// @param count   How many.
/// @param values  Their values, one after the other: `count` times penstock_row_bytes().
/// @param clock   Their version, not below the one that they have: any number that never falls, or PENSTOCK_CLOCK_AUTO.
///
/// Errors: PENSTOCK_NOT_PRODUCER, PENSTOCK_UNKNOWN_ROW, PENSTOCK_ROW_TWICE, PENSTOCK_CLOCK_BACKWARDS, PENSTOCK_BAD_OPTION (the
/// table has a fold: use penstock_add()), and those of penstock_clock(). Nothing was set.
penstock_status penstock_set(const penstock_table *table,
                             const uint64_t *rows,
                             size_t count,
                             const void *values,
                             uint64_t clock);

/// Adds to rows that this worker produces, all together: a reader sees all of them or none. The table has PENSTOCK_FOLD_SUM.
///
/// @param rows    The rows; values for a row that is named twice add up.
/// @param count   How many.
/// @param values  What is added, one after the other: `count` times penstock_row_bytes().
/// @param clock   As for penstock_set().
///
/// Errors: as penstock_set(); PENSTOCK_BAD_OPTION if the table has no fold.
penstock_status penstock_add(const penstock_table *table,
                             const uint64_t *rows,
                             size_t count,
                             const void *values,
                             uint64_t clock);

/// Copies rows, each of version max(clock - slack, 0) or above, and waits if it has to. Rows that were set together are seen
/// together.
///
/// This worker's own rows are always current. It does not wait for a row that only this worker could make fresh enough:
/// PENSTOCK_NEVER_SET.
///
/// @param rows   The rows, which this worker consumes or produces.
/// @param count  How many.
/// @param out    Where their values are copied to, one after the other: `count` times penstock_row_bytes().
/// @param clock  The clock to ask for, or PENSTOCK_CLOCK_AUTO.
/// @param slack  How many versions they may lag behind: 0 or above, PENSTOCK_SLACK_DEFAULT (the table's own) or
///               PENSTOCK_SLACK_UNBOUNDED (never waits).
///
/// Errors: PENSTOCK_UNKNOWN_ROW, PENSTOCK_NEVER_SET, PENSTOCK_GET_TIMEOUT (the text names rows, versions and producers),
/// PENSTOCK_ROWS_APART, PENSTOCK_BAD_OPTION (the slack), and those of penstock_clock(). The content of `out` is then undefined.
penstock_status penstock_get(const penstock_table *table,
                             const uint64_t *rows,
                             size_t count,
                             void *out,
                             uint64_t clock,
                             int64_t slack);

/// penstock_set() for ranges of rows: all together, in the order of the ranges.
///
/// @param ranges       The ranges; a row may be in only one of them.
/// @param range_count  How many.
/// @param values       Their values, one after the other.
///
/// Errors: as penstock_set().
penstock_status penstock_set_ranges(const penstock_table *table,
                                    const penstock_range *ranges,
                                    size_t range_count,
                                    const void *values,
                                    uint64_t clock);

/// penstock_add() for ranges of rows: all together, in the order of the ranges.
///
/// @param ranges       The ranges; values for a row that is in several add up.
/// @param range_count  How many.
/// @param values       What is added, one after the other.
///
/// Errors: as penstock_add().
penstock_status penstock_add_ranges(const penstock_table *table,
                                    const penstock_range *ranges,
                                    size_t range_count,
                                    const void *values,
                                    uint64_t clock);

/// penstock_get() for ranges of rows, with more arguments. A single range costs the least: its rows are found with one lookup,
/// and copied at once if they were set together.
///
/// @param ranges       The ranges, whose rows this worker consumes or produces.
/// @param range_count  How many.
/// @param out          Where their values are copied to, one after the other, in the order of the ranges.
/// @param clock, slack As for penstock_get().
/// @param call         NULL, or see penstock_call: `timeout`, `versions` (one a row).
///
/// Errors: as penstock_get().
penstock_status penstock_get_ranges(const penstock_table *table,
                                    const penstock_range *ranges,
                                    size_t range_count,
                                    void *out,
                                    uint64_t clock,
                                    int64_t slack,
                                    const penstock_call *call);

/// penstock_get() with its own timeout, and the versions of the values.
///
/// @param call  NULL, or see penstock_call: `timeout`, `versions` (one a row).
///
/// Errors: as penstock_get().
penstock_status penstock_get_with(const penstock_table *table,
                                  const uint64_t *rows,
                                  size_t count,
                                  void *out,
                                  uint64_t clock,
                                  int64_t slack,
                                  const penstock_call *call);

/// penstock_set() for one row.
penstock_status penstock_set_row(const penstock_table *table,
                                 uint64_t row,
                                 const void *value,
                                 uint64_t clock);

/// penstock_get() for one row. A row that is fresh enough costs as much as its copy, and a few tens of nanoseconds.
penstock_status penstock_get_row(const penstock_table *table,
                                 uint64_t row,
                                 void *out,
                                 uint64_t clock,
                                 int64_t slack);

/// Starts fetching what a later penstock_get() of these rows would wait for, and returns at once. On one host there is nothing to
/// fetch.
///
/// @param rows, count, clock, slack  As for that penstock_get().
///
/// Errors: PENSTOCK_UNKNOWN_ROW, PENSTOCK_BAD_OPTION (the slack), and those of penstock_clock().
penstock_status penstock_prefetch(const penstock_table *table,
                                  const uint64_t *rows,
                                  size_t count,
                                  uint64_t clock,
                                  int64_t slack);

/// The newest version that is here of each row.
///
/// @param versions  Where they are stored: `count` of them.
///
/// Errors: PENSTOCK_UNKNOWN_ROW, and those of penstock_clock().
penstock_status penstock_versions(const penstock_table *table,
                                  const uint64_t *rows,
                                  size_t count,
                                  uint64_t *versions);

/// Gives access to a row in place, as fresh as penstock_get_row() would copy it. Nothing is copied. The table must have no fold.
///
/// Its producer does not wait for readers: what is read counts only if penstock_view_end() returns PENSTOCK_OK.
///
/// @param view   Where the view is stored; end it with penstock_view_end(), before penstock_finish().
/// @param bytes  Where the row's address is stored: penstock_row_bytes() bytes, not to be written to, valid until the view ends.
///
/// Errors: as penstock_get(); PENSTOCK_BAD_OPTION if the table has a fold.
penstock_status penstock_view_begin(const penstock_table *table,
                                    uint64_t row,
                                    uint64_t clock,
                                    int64_t slack,
                                    penstock_view **view,
                                    const void **bytes);

/// penstock_view_begin() with its own timeout, and the row's version.
///
/// @param call  NULL, or see penstock_call: `timeout`, `versions` (one).
penstock_status penstock_view_begin_with(const penstock_table *table,
                                         uint64_t row,
                                         uint64_t clock,
                                         int64_t slack,
                                         penstock_view **view,
                                         const void **bytes,
                                         const penstock_call *call);

/// Ends a view, and reports whether what was read in it counts.
///
/// @param view  NULL: nothing is done.
///
/// Errors: PENSTOCK_TORN_VIEW (the row was overwritten in the meantime: discard what was read, and read again). The view has
/// ended in either case.
penstock_status penstock_view_end(penstock_view *view);

/// Starts a get, and returns at once.
///
/// Requests make progress by themselves, on threads of the library: one for each tensor that has some, and one for each get that
/// has to wait, at most 64 at one time. Further gets are queued, and a call that tests one or waits for it carries it out.
/// `clock` is taken at this call, whatever penstock_clock() does in the meantime.
///
/// @param rows, count, out, clock, slack  As for penstock_get(). `out` must live, and not be used, until the request is done; `rows` may
///                                        be changed at once.
/// @param call     NULL, or see penstock_call: `timeout` counts from when the get begins; `versions` (one a row) as `out`.
/// @param request  Where the request is stored. It ends with the penstock_test(), penstock_wait() or penstock_wait_any() that
///                 reports it done, or with penstock_finish().
///
/// Errors: PENSTOCK_BAD_ARGUMENT, PENSTOCK_BAD_OPTION (the slack), PENSTOCK_TABLE_DROPPED, PENSTOCK_SYSTEM (no thread). Errors of
/// the get itself are reported when it ends.
penstock_status penstock_start_get(const penstock_table *table,
                                   const uint64_t *rows,
                                   size_t count,
                                   void *out,
                                   uint64_t clock,
                                   int64_t slack,
                                   const penstock_call *call,
                                   penstock_request **request);

/// Starts a push, and returns at once. It belongs to the iteration that this worker is in: penstock_clock() waits until it has
/// left. The learning rate is taken at this call.
///
/// Requests for one tensor are carried out in the order in which they were started; other pushes and pulls of it wait for those that were
/// started before.
///
/// @param data, bytes  As for penstock_push(). `data` must live, and not be changed, until the request is done.
/// @param call         NULL, or see penstock_call: `timeout`, `more`, and `versions` (one), which must live until the request is done.
/// @param request      As for penstock_start_get().
///
/// Errors: as penstock_start_get(). Errors of the push itself are reported when it ends.
penstock_status penstock_start_push(penstock_tensor *tensor,
                                    const void *data,
                                    size_t bytes,
                                    const penstock_call *call,
                                    penstock_request **request);

/// Starts a pull, and returns at once. How fresh the value must be depends on this worker's clock at this call: penstock_clock()
/// may be called before the request is done.
///
/// @param out, bytes, slack  As for penstock_pull_into(). `out` must live, and not be used, until the request is done.
/// @param call               NULL, or see penstock_call: `timeout`, `exact`, and `versions` (one), which must live until the request is
///                           done.
/// @param request            As for penstock_start_get().
///
/// Errors: as penstock_start_get(). Errors of the pull itself are reported when it ends.
penstock_status penstock_start_pull(penstock_tensor *tensor,
                                    void *out,
                                    size_t bytes,
                                    int64_t slack,
                                    const penstock_call *call,
                                    penstock_request **request);

/// Whether a request is done; does not wait.
///
/// @param request  The request: set to NULL if it is done, after which its handle must not be used. A NULL request counts as
///                 done.
/// @param done     Set to 1 or 0.
///
/// If it is done, returns what the push, pull or get itself would have returned. Other errors: PENSTOCK_UNKNOWN_REQUEST.
penstock_status penstock_test(penstock_request **request,
                              int32_t *done);

/// Waits until a request is done.
///
/// @param request  The request: set to NULL if it is done. A NULL request counts as done.
/// @param timeout  Seconds to wait; 0: as long as the push, pull or get itself waits.
///
/// Returns what the push, pull or get itself would have returned. Other errors: PENSTOCK_DEADLINE_EXCEEDED (`timeout` has passed,
/// and the request continues: `*request` is not NULL), PENSTOCK_UNKNOWN_REQUEST.
penstock_status penstock_wait(penstock_request **request,
                              double timeout);

/// Waits until one of several requests is done. They may belong to several tensors, tables and jobs.
///
/// @param requests  The requests. The one that is done is set to NULL; those that are NULL already do not count.
/// @param count     How many there are.
/// @param index     Set to the index of the one that is done; SIZE_MAX if all are NULL.
/// @param timeout   Seconds to wait; 0: as long as the first of them waits.
///
/// Returns what that push, pull or get itself would have returned. Other errors: PENSTOCK_DEADLINE_EXCEEDED (`timeout` has
/// passed, and all continue; `*index` is unchanged), PENSTOCK_UNKNOWN_REQUEST (`*index` is that of a request that does not
/// exist).
penstock_status penstock_wait_any(penstock_request **requests,
                                  size_t count,
                                  size_t *index,
                                  double timeout);

/// Starts a push of some rows, and returns at once; otherwise as penstock_start_push().
///
/// @param rows, count, values, bytes  As for penstock_push_rows(). `values` must live, and not be changed, until the request is done;
///                                    `rows` may be changed at once.
/// @param call, request               As for penstock_start_push().
///
/// Errors: as penstock_start_get(). Errors of the push itself are reported when it ends.
penstock_status penstock_start_push_rows(penstock_tensor *tensor,
                                         const uint64_t *rows,
                                         size_t count,
                                         const void *values,
                                         size_t bytes,
                                         const penstock_call *call,
                                         penstock_request **request);

/// The same of single elements.
///
/// @param indices, count, values, bytes  As for penstock_push_elements(), and penstock_start_push_rows().
/// @param call, request                  As for penstock_start_push().
///
/// Errors: as penstock_start_push_rows().
penstock_status penstock_start_push_elements(penstock_tensor *tensor,
                                             const uint64_t *indices,
                                             size_t count,
                                             const void *values,
                                             size_t bytes,
                                             const penstock_call *call,
                                             penstock_request **request);

/// Starts a push of the product of two factors, and returns at once; otherwise as penstock_start_push().
///
/// @param u, u_bytes, v, v_bytes, rank  As for penstock_push_factors(). `u` and `v` must live, and not be changed, until the request is
///                                      done.
/// @param call, request                 As for penstock_start_push().
///
/// Errors: as penstock_start_get(). Errors of the push itself are reported when it ends.
penstock_status penstock_start_push_factors(penstock_tensor *tensor,
                                            const void *u,
                                            size_t u_bytes,
                                            const void *v,
                                            size_t v_bytes,
                                            size_t rank,
                                            const penstock_call *call,
                                            penstock_request **request);

/// Starts a pull of some rows, and returns at once; otherwise as penstock_start_pull().
///
/// @param rows, count, out, bytes, slack  As for penstock_pull_rows(). `out` must live, and not be used, until the request is done; `rows`
///                                        may be changed at once.
/// @param call, request                   As for penstock_start_pull().
///
/// Errors: as penstock_start_get(). Errors of the pull itself are reported when it ends.
penstock_status penstock_start_pull_rows(penstock_tensor *tensor,
                                         const uint64_t *rows,
                                         size_t count,
                                         void *out,
                                         size_t bytes,
                                         int64_t slack,
                                         const penstock_call *call,
                                         penstock_request **request);

/// The same of single elements.
///
/// @param indices, count, out, bytes, slack  As for penstock_pull_elements(), and penstock_start_pull_rows().
/// @param call, request                      As for penstock_start_pull().
///
/// Errors: as penstock_start_pull_rows().
penstock_status penstock_start_pull_elements(penstock_tensor *tensor,
                                             const uint64_t *indices,
                                             size_t count,
                                             void *out,
                                             size_t bytes,
                                             int64_t slack,
                                             const penstock_call *call,
                                             penstock_request **request);

/// What this worker has done since it joined.
///
/// @param counters  Where it is left: as many of its bytes as `counters->struct_size` says.
///
/// Errors: PENSTOCK_BAD_ARGUMENT.
penstock_status penstock_job_stats(const penstock_job *job, penstock_job_counters *counters);

/// What this worker has done with a table since it declared it.
///
/// @param counters  Where it is left: as many of its bytes as `counters->struct_size` says.
///
/// Errors: PENSTOCK_BAD_ARGUMENT, PENSTOCK_TABLE_DROPPED.
penstock_status penstock_table_stats(const penstock_table *table,
                                     penstock_table_counters *counters);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PENSTOCK_H */
