/* Kernels for CPUs: products and recurrent layers of many clients, which are too small for libraries.

   A library's product of ten rows spends about half of its time before and after its multiplications, it copies what is
   turned, and nothing that is done to its result stays in registers. Here the weights of a recurrent layer are put in
   order once for all steps of a sequence. In which order numbers are added up follows from the sizes of a product alone,
   not from the width of the processor's instructions, nor from who else trains; where the processor has no joined
   multiplication and addition, last digits differ.

   Operations get tensors and whole numbers by torch's stable interface for C, which is declared below as far as it is
   needed, so that nothing but a C compiler is. They write to tensors that their callers have made, and draw nothing. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

/* Torch's interface. Whoever is called has to delete the handles of tensors, which are its own. */
typedef uint64_t Value;
typedef struct TensorObject *Handle;
typedef struct LibraryObject *Library;
typedef void (*Operation)(Value *stack, uint64_t given, uint64_t returned);

extern int32_t aoti_torch_library_init_impl(const char *, const char *, const char *, uint32_t, Library *);
extern int32_t aoti_torch_library_impl(Library, const char *, Operation);
extern int32_t aoti_torch_get_data_ptr(Handle, void **);
extern int32_t aoti_torch_delete_tensor_object(Handle);

/* Vectors of the widest instructions, and how many of them sums have room for in registers. */
#if defined(__AVX512F__)
#define WIDTH 16
#define SUMS 20
#elif defined(__AVX2__)
#define WIDTH 8
#define SUMS 8
#else
#define WIDTH 4
#define SUMS 16
#endif
#define VECTORS 4 /* of a row of a part of a product, at most */
#define PANEL (VECTORS * WIDTH)
#define ROWS_OF(vectors) (SUMS / (vectors) < 10 ? SUMS / (vectors) : 10) /* of a part with rows of so many vectors */

typedef float Vector __attribute__((vector_size(WIDTH * 4)));
typedef float AnyVector __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));
typedef int32_t Whole __attribute__((vector_size(WIDTH * 4)));

#define UNROLLED _Pragma("GCC unroll 10")
#define INLINE static inline __attribute__((always_inline))

/* Products ---------------------------------------------------------------------------------------------------------- */

/* What is written: where its numbers begin, and how far it is to the next row. */
typedef struct {
    float *numbers;
    int64_t row;
} Result;

/* What is on the left: how far it is to the next row and to the next column, one of which is 1. */
typedef struct {
    const float *numbers;
    int64_t row, column;
} Left;

/* What is on the right: how far it is to the next row and to the next panel, a number of columns; and whether panels
   are as wide as they can be, filled up with zeros. */
typedef struct {
    const float *numbers;
    int64_t row, panel;
    int filled;
} Right;

#define DEEPEST 128 /* rows of a panel that stay in the nearest cache while they are used */

/* out += left * panel, or without the sum before, of `rows` rows and `vectors` vectors: known numbers, so that sums stay
   in registers. */
INLINE void part(int rows, int vectors, int64_t depth, Left left, const float *panel, int64_t panel_row,
                 const float *before, int64_t before_row, Result out)
{
    Vector sums[10][VECTORS];
    if (before) {
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int v = 0; v < vectors; v++)
                sums[r][v] = *(const AnyVector *)(before + r * before_row + v * WIDTH);
    } else {
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int v = 0; v < vectors; v++)
                sums[r][v] = (Vector){0};
    }
    for (int64_t k = 0; k < depth; k++) {
        Vector right[VECTORS];
        UNROLLED
        for (int v = 0; v < vectors; v++)
            right[v] = *(const AnyVector *)(panel + k * panel_row + v * WIDTH);
        UNROLLED
        for (int r = 0; r < rows; r++) {
            const Vector x = (Vector){0} + left.numbers[r * left.row + k * left.column];
            UNROLLED
            for (int v = 0; v < vectors; v++)
                sums[r][v] += x * right[v];
        }
    }
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int v = 0; v < vectors; v++)
            *(AnyVector *)(out.numbers + r * out.row + v * WIDTH) = sums[r][v];
}

/* Either the rows or the columns of the left one follow each other: to know which is faster. */
#define PART(rows, vectors)                                                                                            \
    case 16 * vectors + rows:                                                                                          \
        if (rows > ROWS_OF(vectors))                                                                                   \
            break;                                                                                                     \
        if (left.row == 1)                                                                                             \
            part(rows, vectors, depth, (Left){left.numbers, 1, left.column}, panel, panel_row, before, before_row,     \
                 out);                                                                                                 \
        else                                                                                                           \
            part(rows, vectors, depth, (Left){left.numbers, left.row, 1}, panel, panel_row, before, before_row, out);  \
        break;
#define PARTS(vectors)                                                                                                 \
    PART(1, vectors) PART(2, vectors) PART(3, vectors) PART(4, vectors) PART(5, vectors) PART(6, vectors)              \
    PART(7, vectors) PART(8, vectors) PART(9, vectors) PART(10, vectors)

static void part_of(int rows, int vectors, int64_t depth, Left left, const float *panel, int64_t panel_row,
                    const float *before, int64_t before_row, Result out)
{
    switch (16 * vectors + rows) {
        PARTS(1)
        PARTS(2)
        PARTS(3)
        PARTS(4)
    }
}

static void copy_rows(int64_t rows, int64_t columns, const float *from, int64_t from_row, float *to, int64_t to_row)
{
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * to_row, from + r * from_row, (size_t)columns * sizeof(float));
}

/* out = before + left * right; without a `before`, it is 0. Columns that fill no vector are computed aside. */
static void multiply(int64_t rows, int64_t columns, int64_t depth, Left left, Right right, const float *before,
                     int64_t before_row, Result out)
{
    float filled[DEEPEST * PANEL], aside[SUMS * WIDTH];
    for (int64_t begin = 0; begin < columns; begin += PANEL) {
        const int64_t some = columns - begin < PANEL ? columns - begin : PANEL;
        const int vectors = (int)((some + WIDTH - 1) / WIDTH), wide = vectors * WIDTH;
        const int64_t parts = (rows + ROWS_OF(vectors) - 1) / ROWS_OF(vectors);
        for (int64_t top = 0; top < depth; top += DEEPEST) {
            const int64_t deep = depth - top < DEEPEST ? depth - top : DEEPEST;
            const float *panel = right.numbers + begin / PANEL * right.panel + top * right.row;
            int64_t panel_row = right.row;
            if (some < wide && !right.filled) {
                memset(filled, 0, (size_t)(deep * wide) * sizeof(float));
                copy_rows(deep, some, panel, panel_row, filled, wide);
                panel = filled, panel_row = wide;
            }
            for (int64_t number = 0, row = 0; number < parts; number++) {
                const int few = (int)((rows - row + parts - number - 1) / (parts - number));
                const Left of_rows = {left.numbers + row * left.row + top * left.column, left.row, left.column};
                const Result found = {out.numbers + row * out.row + begin, out.row};
                const float *sums = before ? before + row * before_row + begin : NULL;
                int64_t sums_row = before_row;
                if (top)
                    sums = found.numbers, sums_row = found.row;
                if (some == wide) {
                    part_of(few, vectors, deep, of_rows, panel, panel_row, sums, sums_row, found);
                } else {
                    memset(aside, 0, sizeof aside);
                    if (sums)
                        copy_rows(few, some, sums, sums_row, aside, wide);
                    part_of(few, vectors, deep, of_rows, panel, panel_row, aside, wide, (Result){aside, wide});
                    copy_rows(few, some, aside, wide, found.numbers, found.row);
                }
                row += few;
            }
        }
    }
    for (int64_t r = 0; !depth && r < rows; r++) /* where the sum has no terms */
        if (before)
            memmove(out.numbers + r * out.row, before + r * before_row, (size_t)columns * sizeof(float));
        else
            memset(out.numbers + r * out.row, 0, (size_t)columns * sizeof(float));
}

/* Memory for a matrix in panels, each of which lies in order; NULL where there is none. */
static float *room_for_panels(int64_t columns, int64_t depth)
{
    const int64_t panels = (columns + PANEL - 1) / PANEL;
    return aligned_alloc(64, (size_t)(panels * PANEL * (depth ? depth : 1)) * sizeof(float));
}

/* A matrix, whose number k of column j is numbers[k * to_next + j * to_column], in panels there. */
static Right in_panels(int64_t columns, int64_t depth, const float *numbers, int64_t to_next, int64_t to_column,
                       float *room)
{
    for (int64_t begin = 0; begin < columns; begin += PANEL) {
        float *panel = room + begin * depth;
        const int64_t some = columns - begin < PANEL ? columns - begin : PANEL;
        if (some < PANEL)
            memset(panel, 0, (size_t)(depth * PANEL) * sizeof(float));
        for (int64_t top = 0; top < depth; top += 32) /* whose lines stay in the nearest cache until they are full */
            for (int64_t j = 0; j < some; j++)
                for (int64_t k = top; k < depth && k < top + 32; k++)
                    panel[k * PANEL + j] = numbers[k * to_next + (begin + j) * to_column];
    }
    return (Right){room, PANEL, PANEL * depth, 1};
}

/* Sums of products of two rows each, in sixteen parts, whatever the width of the processor's instructions. */
typedef float Sixteen __attribute__((vector_size(64)));
typedef float AnySixteen __attribute__((vector_size(64), aligned(4), may_alias));
#define FEW_LEFT 5
#define FEW_RIGHT 4
/* From which on this takes less time than to put the right one in panels, of few rows and of many. */
#define FEW_ROWS 32
#define LONG_SUM(rows) ((rows) <= FEW_ROWS ? 64 : 256)

INLINE Sixteen rest_of(const float *numbers, int64_t count)
{
#if defined(__AVX512F__)
    return (Sixteen)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), numbers);
#else
    Sixteen found = {0};
    memcpy(&found, numbers, (size_t)count * sizeof(float));
    return found;
#endif
}

typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));

INLINE float total_of(Sixteen parts)
{
    Eight eight[2];
    Four four[2];
    memcpy(eight, &parts, sizeof eight);
    eight[0] += eight[1];
    memcpy(four, eight, sizeof four);
    four[0] += four[1];
    return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

INLINE void rows_by_rows(int rows, int columns, int64_t depth, const float *left, int64_t left_row, const float *right,
                         int64_t right_column, Result out)
{
    Sixteen sums[FEW_LEFT][FEW_RIGHT] = {0}, of_right[FEW_RIGHT];
    int64_t k = 0;
    for (; k + 16 <= depth; k += 16) {
        UNROLLED
        for (int j = 0; j < columns; j++)
            of_right[j] = *(const AnySixteen *)(right + j * right_column + k);
        UNROLLED
        for (int r = 0; r < rows; r++) {
            const Sixteen of_left = *(const AnySixteen *)(left + r * left_row + k);
            UNROLLED
            for (int j = 0; j < columns; j++)
                sums[r][j] += of_left * of_right[j];
        }
    }
    if (k < depth) {
        UNROLLED
        for (int j = 0; j < columns; j++)
            of_right[j] = rest_of(right + j * right_column + k, depth - k);
        UNROLLED
        for (int r = 0; r < rows; r++) {
            const Sixteen of_left = rest_of(left + r * left_row + k, depth - k);
            UNROLLED
            for (int j = 0; j < columns; j++)
                sums[r][j] += of_left * of_right[j];
        }
    }
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int j = 0; j < columns; j++)
            out.numbers[r * out.row + j] = total_of(sums[r][j]);
}

#define FEW(rows, columns)                                                                                            \
    case 8 * columns + rows:                                                                                           \
        rows_by_rows(rows, columns, depth, a, left_row, b, right_column, found);                                       \
        break;
#define FEW_OF(columns) FEW(1, columns) FEW(2, columns) FEW(3, columns) FEW(4, columns) FEW(5, columns)

/* out = left * right, of rows on the left and columns on the right that lie in order. */
static void multiply_rows(int64_t rows, int64_t columns, int64_t depth, const float *left, int64_t left_row,
                          const float *right, int64_t right_column, Result out)
{
    const int64_t parts = (rows + FEW_LEFT - 1) / FEW_LEFT;
    for (int64_t j = 0; j < columns; j += FEW_RIGHT) {
        const int few = columns - j < FEW_RIGHT ? (int)(columns - j) : FEW_RIGHT;
        for (int64_t number = 0, r = 0; number < parts; number++) {
            const int some = (int)((rows - r + parts - number - 1) / (parts - number));
            const float *a = left + r * left_row, *b = right + j * right_column;
            const Result found = {out.numbers + r * out.row + j, out.row};
            switch (8 * few + some) {
                FEW_OF(1)
                FEW_OF(2)
                FEW_OF(3)
                FEW_OF(4)
            }
            r += some;
        }
    }
}

/* Functions --------------------------------------------------------------------------------------------------------- */

INLINE Vector load(const float *from, int64_t count)
{
    if (count >= WIDTH)
        return *(const AnyVector *)from;
    Vector found = {0};
    memcpy(&found, from, (size_t)count * sizeof(float));
    return found;
}

INLINE void store(float *to, Vector values, int64_t count)
{
    if (count >= WIDTH)
        *(AnyVector *)to = values;
    else
        memcpy(to, &values, (size_t)count * sizeof(float));
}

INLINE Vector choose(Whole which, Vector yes, Vector no)
{
    return (Vector)((which & (Whole)yes) | (~which & (Whole)no));
}

/* Powers of two times a polynomial of what is left, by least squares of the relative error (4.8e-11). What is not a
   number stays so, which needs care: its bits are changed like those of others. */
INLINE Vector exponential(Vector x)
{
    const Vector least = (Vector){0} - 87.0f, most = (Vector){0} + 88.0f;
    const Whole is_number = x == x;
    x = choose(x < least, least, x);
    x = choose(x > most, most, x);
    const Vector shifted = x * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23, which leaves no room for fractions */
    const Whole power = ((Whole)shifted - 0x4b400000) << 23;
    const Vector number = shifted - 12582912.0f;
    const Vector rest = x - number * 0.693145751953125f - number * 1.428606765330187e-06f; /* the logarithm of 2 */
    Vector sum = 0.0013946176896706772f + rest * 0.00019918523831331044f;
    sum = 0.00833326410687721f + rest * sum;
    sum = 0.04166626850435777f + rest * sum;
    sum = 0.16666666861746438f + rest * sum;
    sum = 0.5000000078326859f + rest * sum;
    sum = 1.0f + (rest + rest * rest * sum);
    return choose(is_number, (Vector)((Whole)sum + power), x);
}

INLINE Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

/* Near 0, where 1 - 2 / (e^2x + 1) has few digits, a polynomial by least squares of the relative error (6.4e-9). */
INLINE Vector hyperbolic_tangent(Vector x)
{
    const Vector square = x * x;
    Vector sum = 0.020483312483774725f - square * 0.0055286299002979536f;
    sum = -0.05369296684556397f + square * sum;
    sum = 0.1333089974557336f + square * sum;
    sum = -0.3333326288166452f + square * sum;
    return choose(square < 0.4225f, x + x * square * sum, 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f));
}

/* LSTM --------------------------------------------------------------------------------------------------------------- */

/* Gates are in torch's order: what enters, what is forgotten, the candidate, what leaves. All tensors lie in order but
   `gates` and `grad`, whose steps from lane to lane, from time to time and from sample to sample are given. */

static void lstm_of_lane(int64_t length, int64_t samples, int64_t width, const float *gates, int64_t gates_time,
                         int64_t gates_sample, Right weight, float *states, float *cells, float *opened,
                         float *squashed)
{
    const int64_t all = 4 * width, block = samples * width;
    for (int64_t t = 0; t < length; t++) {
        const float *state = states + t * block;
        float *open = opened + t * samples * all;
        multiply(samples, all, width, (Left){state, width, 1}, weight, gates + t * gates_time, gates_sample,
                 (Result){open, all});
        for (int64_t r = 0; r < samples; r++) {
            float *of_row = open + r * all, *flat = squashed + t * block + r * width;
            const float *cell = cells + t * block + r * width;
            float *next_cell = cells + (t + 1) * block + r * width, *next = states + (t + 1) * block + r * width;
            for (int64_t j = 0; j < width; j += WIDTH) {
                const int64_t count = width - j;
                const Vector enter = sigmoid(load(of_row + j, count));
                const Vector forget = sigmoid(load(of_row + width + j, count));
                const Vector candidate = hyperbolic_tangent(load(of_row + 2 * width + j, count));
                const Vector leave = sigmoid(load(of_row + 3 * width + j, count));
                const Vector kept = forget * load(cell + j, count) + enter * candidate;
                const Vector flattened = hyperbolic_tangent(kept);
                store(of_row + j, enter, count);
                store(of_row + width + j, forget, count);
                store(of_row + 2 * width + j, candidate, count);
                store(of_row + 3 * width + j, leave, count);
                store(next_cell + j, kept, count);
                store(flat + j, flattened, count);
                store(next + j, leave * flattened, count);
            }
        }
    }
}

static void lstm_back_of_lane(int64_t length, int64_t samples, int64_t width, const float *grad, int64_t grad_time,
                              int64_t grad_sample, Right weight, const float *cells, const float *opened,
                              const float *squashed, float *of_gates, float *of_hidden, float *of_cell)
{
    const int64_t all = 4 * width, block = samples * width;
    for (int64_t t = length - 1; t >= 0; t--) {
        for (int64_t r = 0; r < samples; r++) {
            const float *open = opened + (t * samples + r) * all, *flat = squashed + t * block + r * width;
            const float *cell = cells + t * block + r * width, *given = grad + (t + 1) * grad_time + r * grad_sample;
            float *found = of_gates + (t * samples + r) * all, *through = of_hidden + r * width;
            float *kept = of_cell + r * width;
            for (int64_t j = 0; j < width; j += WIDTH) {
                const int64_t count = width - j;
                const Vector enter = load(open + j, count), forget = load(open + width + j, count);
                const Vector candidate = load(open + 2 * width + j, count), leave = load(open + 3 * width + j, count);
                const Vector flattened = load(flat + j, count);
                const Vector of_state = load(through + j, count) + load(given + j, count);
                const Vector into = load(kept + j, count) + of_state * (leave * (1.0f - flattened * flattened));
                store(found + j, into * (candidate * enter * (1.0f - enter)), count);
                store(found + width + j, into * (load(cell + j, count) * forget * (1.0f - forget)), count);
                store(found + 2 * width + j, into * (enter * (1.0f - candidate * candidate)), count);
                store(found + 3 * width + j, of_state * (flattened * leave * (1.0f - leave)), count);
                store(kept + j, into * forget, count);
            }
        }
        const float *found = of_gates + t * samples * all;
        multiply(samples, width, all, (Left){found, all, 1}, weight, NULL, 0, (Result){of_hidden, width});
    }
    for (int64_t r = 0; r < samples; r++)
        for (int64_t j = 0; j < width; j++)
            of_hidden[r * width + j] += grad[r * grad_sample + j];
}

/* What torch calls --------------------------------------------------------------------------------------------------- */

static float *numbers_of(Value tensor)
{
    void *numbers = NULL;
    aoti_torch_get_data_ptr((Handle)tensor, &numbers);
    return numbers;
}

static void delete_handles(Value *stack, int count)
{
    for (int i = 0; i < count; i++)
        aoti_torch_delete_tensor_object((Handle)stack[i]);
}

/* Without memory there is nobody to tell: NaN is what everybody looks for. */
static void give_up(float *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = 0.0f / 0.0f;
}

/* gates, weight, hidden, cell, states, cells, opened, squashed; lanes, length, samples, width, steps in gates (3) */
static void lstm(Value *stack, uint64_t given, uint64_t returned)
{
    const float *gates = numbers_of(stack[0]), *weight = numbers_of(stack[1]);
    const float *hidden = numbers_of(stack[2]), *cell = numbers_of(stack[3]);
    float *states = numbers_of(stack[4]), *cells = numbers_of(stack[5]);
    float *opened = numbers_of(stack[6]), *squashed = numbers_of(stack[7]);
    const int64_t lanes = (int64_t)stack[8], length = (int64_t)stack[9], samples = (int64_t)stack[10];
    const int64_t width = (int64_t)stack[11], gates_lane = (int64_t)stack[12], gates_time = (int64_t)stack[13];
    const int64_t gates_sample = (int64_t)stack[14], block = samples * width;
    float *panels = room_for_panels(4 * width, width);
    for (int64_t lane = 0; lane < lanes; lane++) {
        float *of_states = states + lane * (length + 1) * block, *of_cells = cells + lane * (length + 1) * block;
        if (!panels) {
            give_up(of_states, (length + 1) * block);
            continue;
        }
        const Right of_lane = in_panels(4 * width, width, weight + lane * 4 * width * width, 1, width, panels);
        memcpy(of_states, hidden + lane * block, (size_t)block * sizeof(float));
        memcpy(of_cells, cell + lane * block, (size_t)block * sizeof(float));
        lstm_of_lane(length, samples, width, gates + lane * gates_lane, gates_time, gates_sample, of_lane, of_states,
                     of_cells, opened + lane * length * 4 * block, squashed + lane * length * block);
    }
    free(panels);
    delete_handles(stack, 8);
    (void)given, (void)returned;
}

/* grad, grad_cell, weight, cells, opened, squashed, of_gates, of_hidden, of_cell; lanes, length, samples, width, steps
   in grad (3) */
static void lstm_back(Value *stack, uint64_t given, uint64_t returned)
{
    const float *grad = numbers_of(stack[0]), *grad_cell = numbers_of(stack[1]), *weight = numbers_of(stack[2]);
    const float *cells = numbers_of(stack[3]), *opened = numbers_of(stack[4]), *squashed = numbers_of(stack[5]);
    float *of_gates = numbers_of(stack[6]), *of_hidden = numbers_of(stack[7]), *of_cell = numbers_of(stack[8]);
    const int64_t lanes = (int64_t)stack[9], length = (int64_t)stack[10], samples = (int64_t)stack[11];
    const int64_t width = (int64_t)stack[12], grad_lane = (int64_t)stack[13], grad_time = (int64_t)stack[14];
    const int64_t grad_sample = (int64_t)stack[15], block = samples * width;
    float *panels = room_for_panels(width, 4 * width);
    for (int64_t lane = 0; lane < lanes; lane++) {
        float *through = of_hidden + lane * block, *kept = of_cell + lane * block;
        if (!panels) {
            give_up(of_gates + lane * length * 4 * block, length * 4 * block);
            continue;
        }
        const Right of_lane = in_panels(width, 4 * width, weight + lane * 4 * width * width, width, 1, panels);
        memset(through, 0, (size_t)block * sizeof(float));
        memcpy(kept, grad_cell + lane * block, (size_t)block * sizeof(float));
        lstm_back_of_lane(length, samples, width, grad + lane * grad_lane, grad_time, grad_sample, of_lane,
                          cells + lane * (length + 1) * block, opened + lane * length * 4 * block,
                          squashed + lane * length * block, of_gates + lane * length * 4 * block, through, kept);
    }
    free(panels);
    delete_handles(stack, 9);
    (void)given, (void)returned;
}

/* The product of matrices of so many lanes: left, right, out; lanes, rows, depth, columns, steps in left and in right
   (lane, row, column), in out (lane, row) */
static void products(Value *stack, uint64_t given, uint64_t returned)
{
    const float *left = numbers_of(stack[0]), *right = numbers_of(stack[1]);
    float *out = numbers_of(stack[2]), *panels = NULL;
    const int64_t *sizes = (const int64_t *)(stack + 3);
    const int64_t lanes = sizes[0], rows = sizes[1], depth = sizes[2], columns = sizes[3];
    const int64_t *of_left = sizes + 4, *of_right = sizes + 7, *of_out = sizes + 10;
    const int in_order = of_right[2] == 1 || columns == 1;
    const int by_rows = !in_order && of_left[2] == 1 && of_right[1] == 1 && depth >= LONG_SUM(rows);
    if (!in_order && !by_rows)
        panels = room_for_panels(columns, depth);
    for (int64_t lane = 0; lane < lanes; lane++) {
        const float *a = left + lane * of_left[0], *b = right + lane * of_right[0];
        const Result found = {out + lane * of_out[0], of_out[1]};
        if (by_rows) {
            multiply_rows(rows, columns, depth, a, of_left[1], b, of_right[2], found);
        } else if (in_order || panels) {
            Right of_lane = {b, of_right[1], PANEL, 0};
            if (panels)
                of_lane = in_panels(columns, depth, b, of_right[1], of_right[2], panels);
            multiply(rows, columns, depth, (Left){a, of_left[1], of_left[2]}, of_lane, NULL, 0, found);
        } else {
            for (int64_t r = 0; r < rows; r++)
                give_up(found.numbers + r * found.row, columns);
        }
    }
    free(panels);
    delete_handles(stack, 3);
    (void)given, (void)returned;
}

/* What is on the right is subtracted so many times: weights, left, right; lanes, rows, depth, columns, steps in weights
   (lane, row), in left (lane, row, column), in right (lane, row), whose rows lie in order; how many times, in bits. */
static void subtract_products(Value *stack, uint64_t given, uint64_t returned)
{
    float *weights = numbers_of(stack[0]);
    const float *left = numbers_of(stack[1]), *right = numbers_of(stack[2]);
    const int64_t *sizes = (const int64_t *)(stack + 3);
    const int64_t lanes = sizes[0], rows = sizes[1], depth = sizes[2], columns = sizes[3];
    const int64_t *of_weights = sizes + 4, *of_left = sizes + 6, *of_right = sizes + 9;
    double times;
    memcpy(&times, stack + 14, sizeof times);
    float *scaled = malloc((size_t)(rows * depth) * sizeof(float) + 1);
    for (int64_t lane = 0; lane < lanes; lane++) {
        const float *a = left + lane * of_left[0], *b = right + lane * of_right[0];
        const Result found = {weights + lane * of_weights[0], of_weights[1]};
        if (!scaled) {
            for (int64_t r = 0; r < rows; r++)
                give_up(found.numbers + r * found.row, columns);
            continue;
        }
        for (int64_t k = 0; k < depth; k++)
            for (int64_t r = 0; r < rows; r++)
                scaled[k * rows + r] = (float)-times * a[r * of_left[1] + k * of_left[2]];
        const Right direct = {b, of_right[1], PANEL, 0};
        multiply(rows, columns, depth, (Left){scaled, 1, rows}, direct, found.numbers, found.row, found);
    }
    free(scaled);
    delete_handles(stack, 3);
    (void)given, (void)returned;
}

/* Gives torch the operations, whose forms it knows already; 0 if all is well. */
int32_t register_operations(const char *name)
{
    Library library;
    int32_t failed = aoti_torch_library_init_impl(name, "CPU", __FILE__, __LINE__, &library);
    if (!failed)
        failed = aoti_torch_library_impl(library, "lstm", lstm);
    if (!failed)
        failed = aoti_torch_library_impl(library, "lstm_back", lstm_back);
    if (!failed)
        failed = aoti_torch_library_impl(library, "products", products);
    if (!failed)
        failed = aoti_torch_library_impl(library, "subtract_products", subtract_products);
    return failed;
}
