/* The sublayers of a layer on a CPU, each in one pass over rows that stay in the cache: products, gates, norms and all.

   The plain forms in ponder/model say what is computed; tests/model/test_kernels.py holds each of these against its plain
   form. Compiled on this machine by native.py, for AVX2 or AVX-512. All arrays are contiguous. `first` and `last` are the examples or rows that one call does, so that
   several threads can share the work; sums over rows (gradients of weights) belong to the caller's own buffers. */

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__AVX512F__)
#define V 16    /* floats in a vector */
#define PANEL 4 /* vectors of a row of a packed weight that a tile takes at a time */
#elif defined(__AVX2__) && defined(__FMA__)
#define V 8
#define PANEL 2
#else
#error "neither AVX-512 nor AVX2 with FMA"
#endif

#ifndef CALLS /* the cases of `play`, which native.py writes: one for every function */
#define CALLS
#endif
#define WIDE (PANEL * V)
#define ROWS 96 /* of a block: a multiple of every tile's height; its temporaries stay in the second-level cache */
#define EPS 1e-5f
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__) /* a loop that is not unrolled keeps its sums in memory, at a third of the rate */
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef float vf __attribute__((vector_size(4 * V)));
typedef int32_t vi __attribute__((vector_size(4 * V)));
typedef uint32_t vu __attribute__((vector_size(4 * V)));
typedef float anywhere __attribute__((vector_size(4 * V), aligned(4), may_alias));

INLINE vf load(const float *p) { return *(const anywhere *)p; }
INLINE void store(float *p, vf x) { *(anywhere *)p = x; }
INLINE vf all(float x) { return x - (vf){0}; }
INLINE vf pick(vi where, vf yes, vf no) { return (vf)((where & (vi)yes) | (~where & (vi)no)); }

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLED(x, ...) __builtin_shufflevector(x, x, __VA_ARGS__)
#else
#define SHUFFLED(x, ...) __builtin_shuffle(x, (vi){__VA_ARGS__})
#endif

/* What differs by the width. larger, smaller: of two numbers; where one is no number, the second. some: the first n of a vector,
   the rest -infinity. bits: where it is so. BY: every element changes places with the one whose number differs in that bit. */
#if V == 16
INLINE vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE vf root(vf x) { return (vf)_mm512_sqrt_ps((__m512)x); }
INLINE vf some(const float *p, long n) {
    return n >= V ? load(p) : (vf)_mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), (__mmask16)((1u << n) - 1), p);
}
INLINE uint32_t bits(vi where) { return _mm512_movepi32_mask((__m512i)where); }
#define COUNTED ((vu){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
#define BY1(x) SHUFFLED(x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#define BY2(x) SHUFFLED(x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define BY4(x) SHUFFLED(x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define BY8(x) SHUFFLED(x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#else
INLINE vf larger(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE vf root(vf x) { return (vf)_mm256_sqrt_ps((__m256)x); }
#define COUNTED ((vu){0, 1, 2, 3, 4, 5, 6, 7})
INLINE vf some(const float *p, long n) {
    vi there = (vi)COUNTED < (vi){0} + (int32_t)(n < V ? n : V);
    return pick(there, (vf)_mm256_maskload_ps(p, (__m256i)there), all(-INFINITY));
}
INLINE uint32_t bits(vi where) { return (uint32_t)_mm256_movemask_ps((__m256)where); }
#define BY1(x) SHUFFLED(x, 1, 0, 3, 2, 5, 4, 7, 6)
#define BY2(x) SHUFFLED(x, 2, 3, 0, 1, 6, 7, 4, 5)
#define BY4(x) SHUFFLED(x, 4, 5, 6, 7, 0, 1, 2, 3)
#endif

INLINE float total(vf x) {
#if V == 16
    x += BY8(x);
#endif
    x += BY4(x);
    x += BY2(x);
    x += BY1(x);
    return x[0];
}

INLINE float largest(vf x) { /* of numbers */
#if V == 16
    x = larger(x, BY8(x));
#endif
    x = larger(x, BY4(x));
    x = larger(x, BY2(x));
    x = larger(x, BY1(x));
    return x[0];
}

/* Temporaries of this thread, kept from call to call. */
static float *room(long floats) {
    static __thread float *held;
    static __thread long size;
    if (floats > size) {
        free(held);
        size = floats + 4096;
        held = aligned_alloc(64, (size_t)(size * 4 + 63) / 64 * 64);
        if (!held) abort();
    }
    return held;
}

/* Functions ----------------------------------------------------------------------------------------------------------- */

INLINE vf exponential(vf x) {
    x = smaller(all(88.0f), larger(all(-87.0f), x));
    const vf magic = all(12582912.0f);
    vf shifted = x * all(1.44269504f) + magic;
    vf n = shifted - magic;
    vf r = x - n * all(0.693359375f) - n * all(-2.12194440e-4f);
    vf p = all(1.9875691500e-4f);
    p = p * r + all(1.3981999507e-3f);
    p = p * r + all(8.3334519073e-3f);
    p = p * r + all(4.1665795894e-2f);
    p = p * r + all(1.6666665459e-1f);
    p = p * r + all(5.0000001201e-1f);
    p = p * r * r + r + all(1.0f);
    return p * (vf)(((vi)shifted << 23) + 0x3f800000); /* a product, so that what is no number stays so */
}

INLINE vf sigmoid(vf x) { return all(1.0f) / (all(1.0f) + exponential(-x)); }

INLINE vf logarithm(vf x) { /* of normal positive numbers */
    vi bits = (vi)x;
    vi e = (bits >> 23) - 126;
    vf m = (vf)((bits & 0x007fffff) | 0x3f000000);
    vi low = m < all(0.70710678f);
    m = pick(low, m + m, m) - all(1.0f);
    vf n = __builtin_convertvector(e + low, vf);
    vf z = m * m;
    vf p = all(7.0376836292e-2f);
    p = p * m + all(-1.1514610310e-1f);
    p = p * m + all(1.1676998740e-1f);
    p = p * m + all(-1.2420140846e-1f);
    p = p * m + all(1.4249322787e-1f);
    p = p * m + all(-1.6668057665e-1f);
    p = p * m + all(2.0000714765e-1f);
    p = p * m + all(-2.4999993993e-1f);
    p = p * m + all(3.3333331174e-1f);
    p = p * m * z + n * all(-2.12194440e-4f) - all(0.5f) * z;
    return m + p + n * all(0.693359375f);
}

/* cos and sin of a whole turn times u, 0 <= u < 1 */
INLINE void circle(vf u, vf *cosine, vf *sine) {
    const vf magic = all(12582912.0f);
    vf shifted = u * all(4.0f) + magic;
    vi quarter = (vi)shifted & 3;
    vf a = (u - (shifted - magic) * all(0.25f)) * all(6.28318531f);
    vf z = a * a;
    vf s = ((all(-1.9515295891e-4f) * z + all(8.3321608736e-3f)) * z + all(-1.6666654611e-1f)) * z * a + a;
    vf c = ((all(2.443315711809948e-5f) * z + all(-1.388731625493765e-3f)) * z + all(4.166664568298827e-2f)) * z * z -
           all(0.5f) * z + all(1.0f);
    vi odd = (quarter & 1) != 0;
    vf x = pick(odd, s, c), y = pick(odd, c, s);
    *cosine = (vf)((vi)x ^ (((quarter + 1) & 2) << 30));
    *sine = (vf)((vi)y ^ ((quarter & 2) << 30));
}

/* Products ------------------------------------------------------------------------------------------------------------ */

/* `high` rows and `wide` vectors of c = a b, or c + a b. Element (i, p) of a is at a[i * am + p * ak]. */
INLINE void tile(const int high, const int wide, long k, const float *a, long am, long ak, const float *b, long bk,
                 float *c, long ldc, int add) {
    vf sum[12][PANEL];
    UNROLL for (int i = 0; i < high; i++) UNROLL for (int j = 0; j < wide; j++) sum[i][j] = (vf){0};
    for (long p = 0; p < k; p++) {
        vf x[PANEL];
        UNROLL for (int j = 0; j < wide; j++) x[j] = load(b + p * bk + j * V);
        UNROLL for (int i = 0; i < high; i++) UNROLL for (int j = 0; j < wide; j++) sum[i][j] += a[i * am + p * ak] * x[j];
    }
    UNROLL for (int i = 0; i < high; i++) UNROLL for (int j = 0; j < wide; j++) {
        float *at = c + i * ldc + j * V;
        store(at, add ? load(at) + sum[i][j] : sum[i][j]);
    }
}

#define TILE(HIGH, WIDE_) tile(HIGH, WIDE_, k, a + i * am, am, ak, b, bk, c + i * ldc, ldc, add)
#define REST(HIGH, WIDE_) case HIGH: TILE(HIGH, WIDE_); break;
#define PANELS(WIDE_, HIGH, MORE)                                                                                     \
    static void panel##WIDE_(long m, long k, const float *a, long am, long ak, const float *b, long bk, float *c,     \
                             long ldc, int add) {                                                                     \
        long i = 0;                                                                                                   \
        for (; i + HIGH <= m; i += HIGH) TILE(HIGH, WIDE_);                                                           \
        switch (m - i) { MORE(WIDE_) }                                                                                \
    }
#define TO5(W) REST(1, W) REST(2, W) REST(3, W) REST(4, W) REST(5, W)
#define TO7(W) TO5(W) REST(6, W) REST(7, W)
#define TO11(W) TO7(W) REST(8, W) REST(9, W) REST(10, W) REST(11, W)
PANELS(1, 12, TO11)
#if PANEL == 4
PANELS(2, 12, TO11)
PANELS(3, 8, TO7)
PANELS(4, 6, TO5)
#else
PANELS(2, 6, TO5)
#endif

/* c[m, n] = a b (+ c), n a multiple of V. ldb 0: b is packed (see `pack`); else its rows are so far apart. */
static void product(long m, long n, long k, const float *a, long am, long ak, const float *b, long ldb, float *c,
                    long ldc, int add) {
    for (long j = 0; j < n; j += WIDE) {
        long wide = n - j < WIDE ? n - j : WIDE;
        const float *at = b + (ldb ? j : j * k);
        long bk = ldb ? ldb : wide;
        switch (wide / V) {
        case 1: panel1(m, k, a, am, ak, at, bk, c + j, ldc, add); break;
        case 2: panel2(m, k, a, am, ak, at, bk, c + j, ldc, add); break;
#if PANEL == 4
        case 3: panel3(m, k, a, am, ak, at, bk, c + j, ldc, add); break;
        case 4: panel4(m, k, a, am, ak, at, bk, c + j, ldc, add); break;
#endif
        }
    }
}

#define EXCHANGED(D, BY)                                                                                              \
    UNROLL for (int i = 0; i < V; i++) if (!(i & D)) {                                                                \
        vf a = block[i], b = block[i + D];                                                                            \
        vi here = (vi)(COUNTED & D) == 0;                                                                             \
        block[i] = pick(here, a, BY(b));                                                                              \
        block[i + D] = pick(here, BY(a), b);                                                                          \
    }

/* from [rows, columns], rows `apart` floats long -> to [columns, wide], the rest zeros; columns and wide are multiples of V. */
static void transposed(long rows, long columns, const float *from, long apart, float *to, long wide) {
    for (long r = 0; r < wide; r += V)
        for (long c = 0; c < columns; c += V) {
            vf block[V];
            UNROLL for (int i = 0; i < V; i++) block[i] = r + i < rows ? load(from + (r + i) * apart + c) : (vf){0};
            EXCHANGED(1, BY1)
            EXCHANGED(2, BY2)
            EXCHANGED(4, BY4)
#if V == 16
            EXCHANGED(8, BY8)
#endif
            UNROLL for (int i = 0; i < V; i++) store(to + (c + i) * wide + r, block[i]);
        }
}

/* [k, n] with element (p, j) at from[p * fk + j * fn] -> panels of WIDE columns, row after row. */
void pack(long k, long n, const float *from, long fk, long fn, float *to) {
    for (long j = 0; j < n; j += WIDE) {
        long wide = n - j < WIDE ? n - j : WIDE;
        if (fk == 1 && k % V == 0)
            transposed(wide, k, from + j * fn, fn, to + j * k, wide);
        else
            for (long p = 0; p < k; p++)
                for (long i = 0; i < wide; i++) to[j * k + p * wide + i] = from[p * fk + (j + i) * fn];
    }
}

/* Rows of a linear layer: y = x w^T with w^T [in, out] packed; its input's gradient is the same with w. */
void linear(long first, long last, long in, long out, const float *x, const float *packed, float *y) {
    for (long r = first; r < last; r += ROWS) {
        long rows = last - r < ROWS ? last - r : ROWS;
        product(rows, out, in, x + r * in, in, 1, packed, 0, y + r * out, out, 0);
    }
}

/* d_weight[out, in] += grad^T x */
void linear_weight(long first, long last, long in, long out, const float *grad, const float *x, float *d_weight) {
    for (long r = first; r < last; r += ROWS) {
        long rows = last - r < ROWS ? last - r : ROWS;
        product(out, in, rows, grad + r * out, 1, out, x + r * in, in, d_weight, in, 1);
    }
}

/* The norm of a row -------------------------------------------------------------------------------------------------- */

/* y = (x + added * mask) * scale, with the scale that makes its mean square 1; added and mask may be absent. */
INLINE float normed(long n, const float *x, const float *added, const float *mask, float *y) {
    vf squares = {0};
    for (long i = 0; i < n; i += V) {
        vf v = load(x + i);
        if (added) v += mask ? load(added + i) * load(mask + i) : load(added + i);
        squares += v * v;
        store(y + i, v);
    }
    float scale = 1.0f / sqrtf(total(squares) / (float)n + EPS);
    for (long i = 0; i < n; i += V) store(y + i, load(y + i) * scale);
    return scale;
}

INLINE void normed_back(long n, const float *grad, const float *y, float scale, float *d_x) {
    vf along = {0};
    for (long i = 0; i < n; i += V) along += load(grad + i) * load(y + i);
    float mean = total(along) / (float)n;
    for (long i = 0; i < n; i += V) store(d_x + i, (load(grad + i) - load(y + i) * mean) * scale);
}

void norm_forward(long first, long last, long n, const float *x, const float *added, const float *mask, float *y,
                  float *scale) {
    for (long r = first; r < last; r++)
        scale[r] = normed(n, x + r * n, added ? added + r * n : 0, mask ? mask + r * n : 0, y + r * n);
}

void norm_backward(long first, long last, long n, const float *grad, const float *y, const float *scale,
                   const float *mask, float *d_x, float *d_added) {
    for (long r = first; r < last; r++) {
        normed_back(n, grad + r * n, y + r * n, scale[r], d_x + r * n);
        if (mask)
            for (long i = r * n; i < (r + 1) * n; i += V) store(d_added + i, load(d_x + i) * load(mask + i));
    }
}

/* The gated MLP of rows ---------------------------------------------------------------------------------------------- */

INLINE vf gated(vf gate, vf up) { return gate * up / (all(1.0f) + exponential(-gate)); }

INLINE void gated_back(vf grad, vf gate, vf up, vf *d_gate, vf *d_up, vf *middle) {
    vf share = sigmoid(gate);
    vf silu = gate * share;
    *middle = silu * up;
    *d_up = grad * silu;
    *d_gate = grad * up * share * (all(1.0f) + gate * (all(1.0f) - share));
}

INLINE vf tapped(const float *taps, long inner, const float *at, long token) {
    vf c = load(taps + inner) * load(at) + load(taps + 2 * inner);
    if (token) c += load(taps) * load(at - inner);
    return c;
}

/* Rows of a block; of whole examples where tokens see each other. */
static long block_of(long tokens) { return !tokens ? ROWS : tokens * (tokens < ROWS ? ROWS / tokens : 1); }

/* y = down(silu(gate(x)) * up(x) * masked); `joined`: the norm of x plus that times `dropped`. `kept`, where there is a
   backward pass to come: gate and up of every row side by side. `taps` [3, inner], for examples of `tokens` rows: between
   gate and down a row becomes silu(taps[0] * the row before it + taps[1] * itself + taps[2]). */
void swiglu_forward(long first, long last, long in, long inner, long out, const float *x, const float *gate_up,
                    const float *down, long tokens, const float *taps, const float *masked, const float *dropped,
                    long joined, float *kept, float *y, float *scale) {
    long block = block_of(taps ? tokens : 0);
    float *middle = room(block * (inner + 2 * WIDE)), *spare = middle + block * inner;
    for (long r = first; r < last; r += block) {
        long rows = last - r < block ? last - r : block;
        for (long j = 0; j < inner; j += WIDE) {
            long wide = inner - j < WIDE ? inner - j : WIDE;
            long apart = kept ? 2 * inner : 2 * WIDE;
            float *gate = kept ? kept + r * 2 * inner + j : spare, *up = gate + (kept ? inner : WIDE);
            product(rows, wide, in, x + r * in, in, 1, gate_up + j * in, 0, gate, apart, 0);
            product(rows, wide, in, x + r * in, in, 1, gate_up + (inner + j) * in, 0, up, apart, 0);
            for (long i = 0; i < rows; i++)
                for (long q = 0; q < wide; q += V) {
                    vf m = gated(load(gate + i * apart + q), load(up + i * apart + q));
                    if (masked && !taps) m *= load(masked + (r + i) * inner + j + q);
                    store(middle + i * inner + j + q, m);
                }
        }
        for (long i = rows - 1; taps && i >= 0; i--) {
            long token = i % tokens;
            for (long j = 0; j < inner; j += V) {
                float *at = middle + i * inner + j;
                vf c = tapped(taps + j, inner, at, token), m = c * sigmoid(c);
                store(at, masked ? m * load(masked + (r + i) * inner + j) : m);
            }
        }
        product(rows, out, inner, middle, inner, 1, down, 0, y + r * out, out, 0);
        if (joined)
            for (long i = r; i < r + rows; i++)
                scale[i] = normed(out, x + i * out, y + i * out, dropped ? dropped + i * out : 0, y + i * out);
    }
}

/* Of rows of whole examples: `middle`, the gradient of what goes down, becomes what went down itself, and `before` the
   gradient of what the taps took. `spare` holds as many. */
static void taps_back(long rows, long inner, long tokens, const float *taps, const float *masked, const float *kept,
                      float *middle, float *before, float *spare, float *d_taps) {
    float *seen = spare;
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < inner; j += V)
            store(seen + i * inner + j, gated(load(kept + i * 2 * inner + j), load(kept + i * 2 * inner + inner + j)));
    for (long j = 0; j < inner; j += V) {
        vf d_tap[3] = {load(d_taps + j), load(d_taps + inner + j), load(d_taps + 2 * inner + j)};
        for (long i = 0, token = 0; i < rows; i++, token = token + 1 < tokens ? token + 1 : 0) {
            long at = i * inner + j;
            vf c = tapped(taps + j, inner, seen + at, token), share = sigmoid(c);
            vf mask = masked ? load(masked + at) : all(1.0f);
            vf d = load(middle + at) * mask * share * (all(1.0f) + c * (all(1.0f) - share));
            store(middle + at, c * share * mask);
            if (token) {
                d_tap[0] += d * load(seen + at - inner);
                store(before + at - inner, load(before + at - inner) + load(taps + j) * d);
            }
            d_tap[1] += d * load(seen + at);
            d_tap[2] += d;
            store(before + at, load(taps + inner + j) * d);
        }
        for (int n = 0; n < 3; n++) store(d_taps + n * inner + j, d_tap[n]);
    }
}

/* d_taps [3, inner] is added to, as d_gate_up and d_down are. */
void swiglu_backward(long first, long last, long in, long inner, long out, const float *x, const float *gate_up_back,
                     const float *down_back, long tokens, const float *taps, const float *masked, const float *dropped,
                     long joined, const float *kept, const float *y, const float *scale, const float *grad, float *d_x,
                     float *d_gate_up, float *d_down, float *d_taps) {
    long block = block_of(taps ? tokens : 0);
    float *middle = room(block * (3 * inner + 2 * out + (taps ? inner : 0))), *d_both = middle + block * inner,
          *joint = d_both + block * 2 * inner, *d_out = joint + block * out, *before = d_out + block * out;
    for (long r = first; r < last; r += block) {
        long rows = last - r < block ? last - r : block;
        const float *d = grad + r * out;
        if (joined) {
            for (long i = 0; i < rows; i++)
                normed_back(out, grad + (r + i) * out, y + (r + i) * out, scale[r + i], joint + i * out);
            d = joint;
            if (dropped) {
                for (long i = 0; i < rows * out; i += V) store(d_out + i, load(joint + i) * load(dropped + r * out + i));
                d = d_out;
            }
        }
        product(rows, inner, out, d, out, 1, down_back, 0, middle, inner, 0);
        if (taps)
            taps_back(rows, inner, tokens, taps, masked ? masked + r * inner : 0, kept + r * 2 * inner, middle, before, d_both,
                      d_taps);
        for (long i = 0; i < rows; i++)
            for (long j = 0; j < inner; j += V) {
                const float *both = kept + (r + i) * 2 * inner + j;
                float *at = middle + i * inner + j, *back = d_both + i * 2 * inner + j;
                vf mask = masked && !taps ? load(masked + (r + i) * inner + j) : all(1.0f), d_gate, d_up, m;
                vf from = taps ? load(before + i * inner + j) : load(at);
                gated_back(from * mask, load(both), load(both + inner), &d_gate, &d_up, &m);
                if (!taps) store(at, m * mask);
                store(back, d_gate);
                store(back + inner, d_up);
            }
        if (joined) memcpy(d_x + r * in, joint, (size_t)(rows * in) * 4);
        product(rows, in, 2 * inner, d_both, 2 * inner, 1, gate_up_back, 0, d_x + r * in, in, joined);
        product(2 * inner, in, rows, d_both, 1, 2 * inner, x + r * in, in, d_gate_up, in, 1);
        product(out, inner, rows, d, 1, out, middle, inner, d_down, inner, 1);
    }
}

/* The gated MLP across the tokens of an example, [tokens, width] at a time: every column is one row of the above.------- */

/* kept: [2 * inner, width] of each example. The norm of `joined` runs along the tokens, one scale for every column. */
void across_forward(long first, long last, long tokens, long inner, long width, const float *x, const float *gate_up,
                    const float *down, const float *dropped, long joined, float *kept, float *y, float *scale) {
    float *middle = room(3 * inner * WIDE), *spare = middle + inner * WIDE;
    for (long b = first; b < last; b++)
        for (long w = 0; w < width; w += WIDE) {
            long wide = width - w < WIDE ? width - w : WIDE;
            long at = b * tokens * width + w, apart = kept ? width : WIDE;
            float *both = kept ? kept + b * 2 * inner * width + w : spare;
            product(2 * inner, wide, tokens, gate_up, tokens, 1, x + at, width, both, apart, 0);
            for (long i = 0; i < inner; i++)
                for (long q = 0; q < wide; q += V)
                    store(middle + i * WIDE + q, gated(load(both + i * apart + q), load(both + (inner + i) * apart + q)));
            product(tokens, wide, inner, down, inner, 1, middle, WIDE, y + at, width, 0);
            if (joined)
                for (long q = 0; q < wide; q += V) {
                    vf squares = {0};
                    for (long t = 0; t < tokens; t++) {
                        long i = at + t * width + q;
                        vf added = load(y + i);
                        vf v = load(x + i) + (dropped ? added * load(dropped + i) : added);
                        squares += v * v;
                        store(y + i, v);
                    }
                    vf s = squares / all((float)tokens) + all(EPS);
                    s = all(1.0f) / root(s);
                    store(scale + b * width + w + q, s);
                    for (long t = 0; t < tokens; t++) store(y + at + t * width + q, load(y + at + t * width + q) * s);
                }
        }
}

/* c[m, n, V] += what a[m, .] and b[n, .] come to along the same columns, the V lanes apart. */
#define LANES 4
INLINE void lanes_tile(const int high, const int wide, long columns, const float *a, long lda, const float *b, long ldb,
                       float *c, long n) {
    vf sum[LANES][6];
    UNROLL for (int i = 0; i < high; i++) UNROLL for (int j = 0; j < wide; j++) sum[i][j] = load(c + (i * n + j) * V);
    for (long w = 0; w < columns; w += V) {
        vf x[6];
        UNROLL for (int j = 0; j < wide; j++) x[j] = load(b + j * ldb + w);
        UNROLL for (int i = 0; i < high; i++) {
            vf left = load(a + i * lda + w);
            UNROLL for (int j = 0; j < wide; j++) sum[i][j] += left * x[j];
        }
    }
    UNROLL for (int i = 0; i < high; i++) UNROLL for (int j = 0; j < wide; j++) store(c + (i * n + j) * V, sum[i][j]);
}

static void lanes(long m, long n, long columns, const float *a, long lda, const float *b, long ldb, float *c) {
    long i = 0, j = 0;
    const int wide = PANEL == 4 ? 6 : 2;
    for (; i + LANES <= m; i += LANES) {
        for (j = 0; j + wide <= n; j += wide)
            lanes_tile(LANES, wide, columns, a + i * lda, lda, b + j * ldb, ldb, c + (i * n + j) * V, n);
        for (; j < n; j++) lanes_tile(LANES, 1, columns, a + i * lda, lda, b + j * ldb, ldb, c + (i * n + j) * V, n);
    }
    for (; i < m; i++)
        for (j = 0; j < n; j++) lanes_tile(1, 1, columns, a + i * lda, lda, b + j * ldb, ldb, c + (i * n + j) * V, n);
}

void across_backward(long first, long last, long tokens, long inner, long width, const float *x, const float *gate_up,
                     const float *down, const float *dropped, long joined, const float *kept, const float *y,
                     const float *scale, const float *grad, float *d_x, float *d_gate_up, float *d_down) {
    long weights = tokens * inner * V;
    float *joint = room((2 * tokens + 3 * inner) * WIDE + 3 * weights), *d_out = joint + tokens * WIDE,
          *middle = d_out + tokens * WIDE, *d_both = middle + inner * WIDE, *lane_up = d_both + 2 * inner * WIDE,
          *lane_down = lane_up + 2 * weights;
    memset(lane_up, 0, (size_t)(3 * weights) * 4);
    for (long b = first; b < last; b++)
        for (long w = 0; w < width; w += WIDE) {
            long wide = width - w < WIDE ? width - w : WIDE, at = b * tokens * width + w;
            for (long q = 0; q < wide; q += V) {
                vf mean = {0}, s = joined ? load(scale + b * width + w + q) : all(1.0f);
                if (joined) {
                    for (long t = 0; t < tokens; t++) mean += load(grad + at + t * width + q) * load(y + at + t * width + q);
                    mean /= all((float)tokens);
                }
                for (long t = 0; t < tokens; t++) {
                    long i = at + t * width + q;
                    vf d = load(grad + i);
                    if (joined) d = (d - load(y + i) * mean) * s;
                    store(joint + t * WIDE + q, d);
                    store(d_out + t * WIDE + q, dropped ? d * load(dropped + i) : d);
                }
            }
            product(inner, wide, tokens, down, 1, inner, d_out, WIDE, middle, WIDE, 0);
            const float *both = kept + b * 2 * inner * width + w;
            for (long i = 0; i < inner; i++)
                for (long q = 0; q < wide; q += V) {
                    vf d_gate, d_up, m;
                    gated_back(load(middle + i * WIDE + q), load(both + i * width + q), load(both + (inner + i) * width + q),
                               &d_gate, &d_up, &m);
                    store(middle + i * WIDE + q, m);
                    store(d_both + i * WIDE + q, d_gate);
                    store(d_both + (inner + i) * WIDE + q, d_up);
                }
            for (long t = 0; t < tokens; t++)
                for (long q = 0; q < wide; q += V)
                    store(d_x + at + t * width + q, joined ? load(joint + t * WIDE + q) : (vf){0});
            product(tokens, wide, 2 * inner, gate_up, 1, tokens, d_both, WIDE, d_x + at, width, 1);
            lanes(2 * inner, tokens, wide, d_both, WIDE, x + at, width, lane_up);
            lanes(tokens, inner, wide, d_out, WIDE, middle, WIDE, lane_down);
        }
    for (long i = 0; i < 2 * tokens * inner; i++) d_gate_up[i] += total(load(lane_up + i * V));
    for (long i = 0; i < tokens * inner; i++) d_down[i] += total(load(lane_down + i * V));
}

/* The state update: bounded, gated, normed --------------------------------------------------------------------------- */

/* rows[r]: ratio, bound's scale, the gate's opening, the norm's scale. tau 0: no bound; weight 0: no gate. */
void update_forward(long first, long last, long n, const float *old, const float *candidate, const float *seen, float tau,
                    const float *weight, const float *bias, long norm, float *y, float *rows) {
    for (long r = first; r < last; r++) {
        const float *z = old + r * n, *c = candidate + r * n;
        float *at = rows + r * 4;
        vf size = {0}, before = {0}, dot = {0};
        for (long i = 0; i < n; i += V) {
            vf a = load(z + i), d = load(c + i) - a;
            size += d * d;
            before += a * a;
            if (weight) dot += load(seen + r * n + i) * load(weight + i);
        }
        at[0] = tau > 0 ? sqrtf(total(size)) / (sqrtf(total(before)) + 1e-8f) : 0;
        at[1] = tau > 0 ? 1.0f / (at[0] / tau < 1.0f ? 1.0f : at[0] / tau) : 1.0f;
        at[2] = weight ? sigmoid(all(total(dot) + bias[0]))[0] : 1.0f;
        at[3] = 1.0f;
        float share = at[1] * at[2];
        vf squares = {0};
        for (long i = 0; i < n; i += V) {
            vf a = load(z + i), v = a + (load(c + i) - a) * share;
            squares += v * v;
            store(y + r * n + i, v);
        }
        if (norm) {
            at[3] = 1.0f / sqrtf(total(squares) / (float)n + EPS);
            for (long i = 0; i < n; i += V) store(y + r * n + i, load(y + r * n + i) * at[3]);
        }
    }
}

/* The bound's scale counts as a constant. d_gate: [n] of its weight, then its bias. */
void update_backward(long first, long last, long n, const float *old, const float *candidate, const float *seen,
                     const float *weight, long norm, const float *y, const float *rows, const float *grad, float *d_old,
                     float *d_candidate, float *d_seen, float *d_gate) {
    float *d = room(n);
    for (long r = first; r < last; r++) {
        const float *at = rows + r * 4, *from = grad + r * n;
        float share = at[1] * at[2];
        if (norm) normed_back(n, from, y + r * n, at[3], d), from = d;
        vf moved = {0};
        for (long i = 0; i < n; i += V) {
            vf g = load(from + i);
            moved += g * (load(candidate + r * n + i) - load(old + r * n + i));
            store(d_candidate + r * n + i, g * share);
            store(d_old + r * n + i, g - g * share);
        }
        if (weight) {
            float logit = total(moved) * at[1] * at[2] * (1.0f - at[2]);
            for (long i = 0; i < n; i += V) {
                store(d_seen + r * n + i, load(weight + i) * logit);
                store(d_gate + i, load(d_gate + i) + load(seen + r * n + i) * logit);
            }
            d_gate[n] += logit;
        }
    }
}

/* Random numbers, those of rng.py -------------------------------------------------------------------------------------- */

/* Random bits first, first + 1, ... of a key, given as two halves. */
INLINE vu drawn(long first, uint32_t low, uint32_t odd) {
    vu x = (((COUNTED + (uint32_t)first) * 2654435769u) ^ low) * odd;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

INLINE vf unit(long first, uint32_t low, uint32_t odd) { /* the same as numbers inside (0, 1) */
    return (__builtin_convertvector((vi)(drawn(first, low, odd) >> 8), vf) + all(0.5f)) * all(0x1p-24f);
}

/* Masks of n numbers for each key, n a multiple of 2 V: of 16 bits for each, 0 below `least` and else `kept`. */
void keep_mask(long first, long last, long n, const int64_t *key, long least, float kept, float *out) {
    typedef uint64_t both __attribute__((vector_size(8 * V)));
    typedef uint64_t pairs __attribute__((vector_size(8 * V), aligned(4), may_alias));
    vu one = (vu)all(kept);
    for (long b = first; b < last; b++)
        for (long i = 0; i < n; i += 2 * V) {
            vi x = (vi)drawn(i / 2, (uint32_t)key[b], (uint32_t)((uint64_t)key[b] >> 32) | 1u);
            vu low = one & (vu)(((x << 16) >> 16) >= (int32_t)least), high = one & (vu)((x >> 16) >= (int32_t)least);
            *(pairs *)(out + b * n + i) = __builtin_convertvector(low, both) | __builtin_convertvector(high, both) << 32;
        }
}

/* Noise: eta times a position's norm times standard normal numbers; out[b] of [positions, n], their product a multiple of 2 V */
void noise(long first, long last, long positions, long n, const float *u, const int64_t *key, float eta, float *out) {
    float *size = room(positions);
    long half = positions * n / 2;
    for (long b = first; b < last; b++) {
        uint32_t low = (uint32_t)key[b], odd = (uint32_t)((uint64_t)key[b] >> 32) | 1u;
        const float *from = u + b * positions * n;
        float *to = out + b * positions * n;
        for (long p = 0; p < positions; p++) {
            vf squares = {0};
            for (long i = p * n; i < (p + 1) * n; i += V) squares += load(from + i) * load(from + i);
            size[p] = eta * sqrtf(total(squares));
        }
        for (long i = 0; i < half; i += V) {
            vf c, s, radius = root(logarithm(unit(i, low, odd)) * all(-2.0f));
            circle(unit(half + i, low, odd), &c, &s);
            store(to + i, radius * c * size[i / n]);
            store(to + half + i, radius * s * size[(half + i) / n]);
        }
    }
}

/* Attention of short sequences ---------------------------------------------------------------------------------------- */

static long whole(long n) { return (n + 15) / 16 * 16; } /* whatever the vector, as kernels.py has it */

/* Pairs side by side turned; `turn`: cosines, each twice, and `apart` after them sines, the first of two negative. */
INLINE vf turned_by(vf x, const float *turn, long apart, float sign) {
    return x * load(turn) + BY1(x) * load(turn + apart) * sign;
}

/* One head of one example: `part` 0, 1 or 2 of qkv [tokens, 3, heads, size], dropped out, turned and scaled, as rows of
   whole(size) floats, the rest zeros. */
static void head_of(long tokens, long heads, long size, long head, int part, const float *qkv, const float *mask,
                    const float *turn, float scale, float *to) {
    long width = heads * size, apart = whole(size);
    for (long t = 0; t < tokens; t++) {
        long at = t * 3 * width + part * width + head * size;
        for (long i = 0; i < apart; i += V) {
            vf x = {0};
            if (i + V <= size) {
                x = load(qkv + at + i);
                if (mask) x *= load(mask + at + i);
            } else
                for (long j = i; j < size; j++) x[j - i] = qkv[at + j] * (mask ? mask[at + j] : 1.0f);
            if (turn && part < 2) x = turned_by(x, turn + t * 2 * apart + i, apart, 1.0f);
            store(to + t * apart + i, x * scale);
        }
    }
}

/* The way back: gradients of one head's part into d_qkv. */
static void head_back(long tokens, long heads, long size, long head, int part, const float *rows, const float *mask,
                      const float *turn, float scale, float *d_qkv) {
    long width = heads * size, apart = whole(size);
    for (long t = 0; t < tokens; t++) {
        long at = t * 3 * width + part * width + head * size;
        for (long i = 0; i < size; i += V) {
            vf x = load(rows + t * apart + i) * scale;
            if (turn && part < 2) x = turned_by(x, turn + t * 2 * apart + i, apart, -1.0f);
            if (mask && i + V <= size) x *= load(mask + at + i);
            if (i + V <= size)
                store(d_qkv + at + i, x);
            else
                for (long j = i; j < size; j++) d_qkv[at + j] = x[j - i] * (mask ? mask[at + j] : 1.0f);
        }
    }
}

/* qkv [examples, tokens, 3, heads, size] -> y [examples, tokens, heads * size]. kept: the weights that every token gives to
   the others, rows of whole(tokens) floats. bias: [examples, tokens], added to the scores of each key. */
void attention_forward(long first, long last, long tokens, long heads, long size, const float *qkv, const float *mask,
                       const float *turn, const float *bias, float *kept, float *y) {
    long apart = whole(size), wide = whole(tokens), width = heads * size, rows = tokens * apart;
    float *q = room(4 * rows + apart * wide + (tokens + 1) * wide), *k = q + rows, *v = k + rows, *mixed = v + rows,
          *turned = mixed + rows, *shut = turned + apart * wide, *spare = shut + wide;
    for (long b = first; b < last; b++) {
        for (long i = 0; i < wide; i++) shut[i] = i >= tokens ? -INFINITY : bias ? bias[b * tokens + i] : 0;
        for (long h = 0; h < heads; h++) {
            const float *from = qkv + b * tokens * 3 * width, *m = mask ? mask + b * tokens * 3 * width : 0;
            float *share = kept ? kept + (b * heads + h) * tokens * wide : spare, *out = y + b * tokens * width + h * size;
            head_of(tokens, heads, size, h, 0, from, m, turn, 1.0f / sqrtf((float)size), q);
            head_of(tokens, heads, size, h, 1, from, m, turn, 1.0f, k);
            head_of(tokens, heads, size, h, 2, from, m, turn, 1.0f, v);
            transposed(tokens, apart, k, apart, turned, wide);
            product(tokens, wide, size, q, apart, 1, turned, wide, share, wide, 0);
            for (long t = 0; t < tokens; t++) {
                float *row = share + t * wide;
                vf most = all(-INFINITY), sum = {0};
                for (long i = 0; i < wide; i += V) {
                    vf score = load(row + i) + load(shut + i);
                    most = larger(most, score);
                    store(row + i, score);
                }
                float largest = most[0];
                for (int i = 1; i < V; i++) largest = most[i] > largest ? most[i] : largest;
                for (long i = 0; i < wide; i += V) {
                    vf part = exponential(load(row + i) - largest);
                    part = pick(load(shut + i) == all(-INFINITY), (vf){0}, part);
                    sum += part;
                    store(row + i, part);
                }
                float scale = 1.0f / total(sum);
                for (long i = 0; i < wide; i += V) store(row + i, load(row + i) * scale);
            }
            if (apart == size) {
                product(tokens, size, tokens, share, wide, 1, v, apart, out, width, 0);
                continue;
            }
            product(tokens, apart, tokens, share, wide, 1, v, apart, mixed, apart, 0);
            for (long t = 0; t < tokens; t++)
                for (long i = 0; i < size; i++) out[t * width + i] = mixed[t * apart + i];
        }
    }
}

void attention_backward(long first, long last, long tokens, long heads, long size, const float *qkv, const float *mask,
                        const float *turn, const float *kept, const float *grad, float *d_qkv) {
    long apart = whole(size), wide = whole(tokens), width = heads * size, rows = tokens * apart;
    float *q = room(5 * rows + apart * wide + tokens * wide), *k = q + rows, *v = k + rows, *d_mixed = v + rows,
          *d = d_mixed + rows, *turned = d + rows, *d_share = turned + apart * wide, scale = 1.0f / sqrtf((float)size);
    for (long b = first; b < last; b++)
        for (long h = 0; h < heads; h++) {
            const float *from = qkv + b * tokens * 3 * width, *m = mask ? mask + b * tokens * 3 * width : 0;
            const float *share = kept + (b * heads + h) * tokens * wide;
            float *to = d_qkv + b * tokens * 3 * width;
            head_of(tokens, heads, size, h, 0, from, m, turn, 1.0f, q);
            head_of(tokens, heads, size, h, 1, from, m, turn, 1.0f, k);
            head_of(tokens, heads, size, h, 2, from, m, turn, 1.0f, v);
            for (long t = 0; t < tokens; t++) {
                for (long i = 0; i < size; i++) d_mixed[t * apart + i] = grad[(b * tokens + t) * width + h * size + i];
                for (long i = size; i < apart; i++) d_mixed[t * apart + i] = 0;
            }
            transposed(tokens, apart, v, apart, turned, wide);
            product(tokens, wide, size, d_mixed, apart, 1, turned, wide, d_share, wide, 0);
            for (long t = 0; t < tokens; t++) {
                vf along = {0};
                for (long i = t * wide; i < (t + 1) * wide; i += V) along += load(d_share + i) * load(share + i);
                float sum = total(along);
                for (long i = t * wide; i < (t + 1) * wide; i += V) store(d_share + i, load(share + i) * (load(d_share + i) - sum));
            }
            product(tokens, apart, tokens, share, 1, wide, d_mixed, apart, d, apart, 0);
            head_back(tokens, heads, size, h, 2, d, m, turn, 1.0f, to);
            product(tokens, apart, tokens, d_share, wide, 1, k, apart, d, apart, 0);
            head_back(tokens, heads, size, h, 0, d, m, turn, scale, to);
            product(tokens, apart, tokens, d_share, 1, wide, q, apart, d, apart, 0);
            head_back(tokens, heads, size, h, 1, d, m, turn, scale, to);
        }
}

/* Relations: positions become groups, and groups positions ------------------------------------------------------------ */

/* Group g of example b, n floats long: groups of one kind lie together, over all examples. `where`: for each group the
   groups of the kinds before it, how many its own kind has, and which of them it is. */
INLINE long group(const int32_t *where, long g, long b, long examples, long n) {
    return (examples * where[3 * g] + b * where[3 * g + 1] + where[3 * g + 2]) * n;
}

/* x [examples, prefix + cells * symbols, width]. Row g of `lists`, from starts[g] to starts[g + 1], names the cells that group
   g adds up, symbol by symbol. sums: of a cell's symbols (where there are several), everything: of all positions. */
void collect(long first, long last, long examples, long prefix, long cells, long symbols, long width, long groups,
             const int32_t *where, const int32_t *starts, const int32_t *lists, const float *x, float by_group, float by_cell,
             float by_all, float *to, float *sums, float *everything) {
    long n = symbols * width, length = (prefix + cells * symbols) * width;
    for (long b = first; b < last; b++) {
        const float *body = x + b * length + prefix * width;
        for (long g = 0; g < groups; g++) {
            float *out = to + group(where, g, b, examples, n);
            for (long i = 0; i < n; i += V) {
                vf sum = {0};
                for (long j = starts[g]; j < starts[g + 1]; j++) sum += load(body + lists[j] * n + i);
                store(out + i, sum * by_group);
            }
        }
        for (long i = 0; i < width; i += V) {
            vf all_of_it = {0};
            for (long p = 0; p < prefix; p++) all_of_it += load(x + b * length + p * width + i);
            for (long c = 0; c < cells; c++) {
                vf sum = {0};
                for (long s = 0; s < symbols; s++) sum += load(body + c * n + s * width + i);
                all_of_it += sum;
                if (sums) store(sums + (b * cells + c) * width + i, sum * by_cell);
            }
            store(everything + b * width + i, all_of_it * by_all);
        }
    }
}

/* The other way: y = x + mask * (by_all everything + by_cell sums + by_group the groups that row c of `lists` names), or the
   norm of that where there is a `scale` to keep. */
void spread(long first, long last, long examples, long prefix, long cells, long symbols, long width, const int32_t *where,
            const int32_t *starts, const int32_t *lists, const float *x, const float *from, const float *sums,
            const float *everything, const float *mask, float by_group, float by_cell, float by_all, float *y, float *scale) {
    long n = symbols * width, positions = prefix + cells * symbols;
    const float **heard = (const float **)room(2 * starts[cells] + width); /* of every cell, the groups that it hears */
    float *told = (float *)(heard + starts[cells]);
    for (long b = first; b < last; b++) {
        for (long j = 0; j < starts[cells]; j++) heard[j] = from + group(where, lists[j], b, examples, n);
        for (long c = -prefix; c < cells; c++) /* a cell of the prefix hears nothing but everything, and has no symbols */
            for (long s = 0; s < (c < 0 ? 1 : symbols); s++) {
                long at = (b * positions + (c < 0 ? c + prefix : prefix + c * symbols + s)) * width;
                for (long i = 0; i < width; i += V) {
                    vf sum = {0};
                    if (c >= 0) {
                        for (long j = starts[c]; j < starts[c + 1]; j++) sum += load(heard[j] + s * width + i);
                        sum *= by_group;
                        if (sums) sum += load(sums + (b * cells + c) * width + i) * by_cell;
                    }
                    if (everything) sum += load(everything + b * width + i) * by_all;
                    store(told + i, sum);
                }
                if (scale)
                    scale[at / width] = normed(width, x + at, told, mask ? mask + at : 0, y + at);
                else
                    for (long i = 0; i < width; i += V) {
                        vf added = load(told + i);
                        if (mask) added *= load(mask + at + i);
                        store(y + at + i, load(x + at + i) + added);
                    }
            }
    }
}

/* The answer's loss ---------------------------------------------------------------------------------------------------- */

/* loss[b]: cross-entropy of the labels that are not 0, on average over them; d its derivative by the logits [tokens, vocab]
   times `by`, if it is asked for. Probabilities by softmax, or else by stablemax. */
void answer_loss(long first, long last, long tokens, long vocab, const float *logits, const int64_t *labels, long softmax,
                 float by, float *loss, float *d) {
    long wide = (vocab + V - 1) / V * V;
    float *row = room(2 * wide), *share = row + wide;
    for (long b = first; b < last; b++) {
        long count = 0;
        float sum = 0;
        for (long t = b * tokens; t < (b + 1) * tokens; t++) count += labels[t] != 0;
        float each = 1.0f / (float)(count ? count : 1);
        for (long t = b * tokens; t < (b + 1) * tokens; t++) {
            if (labels[t] == 0) {
                if (d) memset(d + t * vocab, 0, (size_t)vocab * 4);
                continue;
            }
            for (long i = 0; i < vocab; i++) row[i] = logits[t * vocab + i];
            for (long i = vocab; i < wide; i++) row[i] = -INFINITY;
            float label = row[labels[t]], most = label, slope = 1.0f;
            vf all_of_it = {0};
            if (softmax)
                for (long i = 0; i < vocab; i++) most = row[i] > most ? row[i] : most;
            for (long i = 0; i < wide; i += V) {
                vf x = load(row + i), s;
                if (softmax) {
                    s = exponential(x - most);
                } else {
                    vf above = larger((vf){0}, x);
                    s = (all(1.0f) + above) / (all(1.0f) - (x - above));
                }
                s = pick(x == all(-INFINITY), (vf){0}, s);
                all_of_it += s;
                store(share + i, s);
            }
            float scale = 1.0f / total(all_of_it), known = label - most;
            if (!softmax) known = label > 0 ? log1pf(label) : -log1pf(-label), slope = 1.0f / (1.0f + fabsf(label));
            sum -= (known + logf(scale)) * each;
            if (!d) continue;
            for (long i = 0; i < wide; i += V) { /* the derivative of s is s itself, or 1 above 0 and its square below */
                vf s = load(share + i);
                store(share + i, (softmax ? s : pick(load(row + i) < (vf){0}, s * s, all(1.0f))) * (scale * each * by));
            }
            for (long i = 0; i < vocab; i++) d[t * vocab + i] = share[i];
            d[t * vocab + labels[t]] -= slope * each * by;
        }
        loss[b] = sum;
    }
}

/* A whole ACT step: what lies between its layers ---------------------------------------------------------------------- */

/* The key that a key and a number make, as rng.fold has it. */
INLINE int64_t folded(int64_t key, int64_t value) {
    uint64_t x = (uint64_t)key + 0x9e3779b97f4a7c15u + (uint64_t)value * 0x94d049bb133111ebu;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (int64_t)(x ^ x >> 31);
}

/* A number in [0, 1) for a key, as rng.uniform has it. */
INLINE float uniform(int64_t key) { return (float)((uint64_t)folded(key, 0) >> 40) * 0x1p-24f; }

/* out[b]: the key that key[b] and a number make, `more` than with[b]. */
void fold(long first, long last, const int64_t *key, const int64_t *with, long more, int64_t *out) {
    for (long b = first; b < last; b++) out[b] = folded(key[b], more + (with ? with[b] : 0));
}

/* x [examples, prefix + tokens, width]: the row of an example, zeros in the rest of the prefix, and the table's rows of its
   tokens; with learned positions their sum by root 2; all that times `scale`. `steps`, if any: zeros unless that is 0 after
   `more`. */
void embed_forward(long first, long last, long prefix, long tokens, long width, const int64_t *ids, const float *table,
                   const float *rows, const float *position, float scale, const int64_t *steps, long more, float *x) {
    for (long b = first; b < last; b++)
        for (long p = 0; p < prefix + tokens; p++) {
            const float *from = p == 0 ? rows + b * width : p < prefix ? 0 : table + ids[b * tokens + p - prefix] * width;
            float *to = x + (b * (prefix + tokens) + p) * width;
            int shut = steps && steps[b] + more != 0;
            for (long i = 0; i < width; i += V) {
                vf v = from && !shut ? load(from + i) : (vf){0};
                if (position && !shut) v = (v + load(position + p * width + i)) * 0.70710678118654752f;
                store(to + i, v * scale);
            }
        }
}

/* d_table and d_position are added to. Not inlined in `play`, where clang would round otherwise than here. */
__attribute__((noinline)) void embed_backward(long first, long last, long prefix, long tokens, long width, const int64_t *ids, float scale,
                    const int64_t *steps, long more, const float *grad, float *d_table, float *d_rows, float *d_position) {
    if (d_position) scale *= 0.70710678118654752f;
    for (long b = first; b < last; b++) {
        int shut = steps && steps[b] + more != 0;
        if (shut) memset(d_rows + b * width, 0, (size_t)width * 4);
        for (long p = 0; p < prefix + tokens && !shut; p++) {
            const float *from = grad + (b * (prefix + tokens) + p) * width;
            float *to = p < prefix ? 0 : d_table + ids[b * tokens + p - prefix] * width, *at = d_position + p * width;
            for (long i = 0; i < width; i += V) {
                vf d = load(from + i) * scale;
                if (p == 0) store(d_rows + b * width + i, d);
                if (to) store(to + i, load(to + i) + d);
                if (d_position) store(at + i, load(at + i) + d);
            }
        }
    }
}

/* The states that examples enter with: `start` at each position where they have taken no step, else the ones they have. */
void begin(long first, long last, long positions, long n, const int64_t *steps, const float *start, const float *old,
           float *out) {
    for (long b = first; b < last; b++)
        for (long p = b * positions; p < (b + 1) * positions; p++)
            memcpy(out + p * n, steps[b] == 0 ? start : old + p * n, (size_t)n * 4);
}

void begin_backward(long first, long last, long positions, long n, const int64_t *steps, const float *grad, float *d_start) {
    for (long b = first; b < last; b++)
        for (long p = b * positions; steps[b] == 0 && p < (b + 1) * positions; p++)
            for (long i = 0; i < n; i += V) store(d_start + i, load(d_start + i) + load(grad + p * n + i));
}

/* out = a + (b + c), a and b times a mask that all positions of an example share; what is absent does not count. */
void add_up(long first, long last, long positions, long n, const float *a, const float *mask_a, const float *b,
            const float *mask_b, const float *c, float *out) {
    for (long e = first; e < last; e++)
        for (long p = e * positions; p < (e + 1) * positions; p++)
            for (long i = 0; i < n; i += V) {
                vf rest = {0}, x = load(a + p * n + i);
                if (mask_a) x *= load(mask_a + e * n + i);
                if (b) rest = load(b + p * n + i);
                if (b && mask_b) rest *= load(mask_b + e * n + i);
                if (c) rest = b ? rest + load(c + p * n + i) : load(c + p * n + i);
                store(out + p * n + i, b || c ? x + rest : x);
            }
}

/* The way back to one of them: out = grad times the mask, or out plus that. */
void pass_on(long first, long last, long positions, long n, const float *grad, const float *mask, long add, float *out) {
    for (long e = first; e < last; e++)
        for (long p = e * positions; p < (e + 1) * positions; p++)
            for (long i = 0; i < n; i += V) {
                vf d = load(grad + p * n + i);
                if (mask) d *= load(mask + e * n + i);
                store(out + p * n + i, add ? load(out + p * n + i) + d : d);
            }
}

/* Examples that had all the steps they asked for keep what they have; the others take `made`. `had` 0: zeros instead. */
void hold(long first, long last, long floats, const int64_t *steps, long more, const int64_t *asked, const float *had,
          const float *made, float *out) {
    for (long b = first; b < last; b++) {
        const float *from = steps[b] + more >= asked[b] ? had : made;
        if (from)
            memcpy(out + b * floats, from + b * floats, (size_t)floats * 4);
        else
            memset(out + b * floats, 0, (size_t)floats * 4);
    }
}

/* logits [tokens, out] of an example's positions after the prefix; the packed weight has whole(out) columns. */
void head_forward(long first, long last, long prefix, long tokens, long width, long out, const float *z, const float *packed,
                  float *logits) {
    long wide = whole(out);
    float *row = room(tokens * wide);
    for (long b = first; b < last; b++) {
        product(tokens, wide, width, z + (b * (prefix + tokens) + prefix) * width, width, 1, packed, 0, row, wide, 0);
        for (long t = 0; t < tokens; t++) memcpy(logits + (b * tokens + t) * out, row + t * wide, (size_t)out * 4);
    }
}

/* d_weight [whole(out), width] is added to. */
void head_backward(long first, long last, long prefix, long tokens, long width, long out, const float *z,
                   const float *packed_back, const float *d_logits, float *d_z, float *d_weight) {
    long wide = whole(out);
    float *row = room(tokens * wide);
    memset(row, 0, (size_t)(tokens * wide) * 4);
    for (long b = first; b < last; b++) {
        long at = b * (prefix + tokens) * width;
        for (long t = 0; t < tokens; t++) memcpy(row + t * wide, d_logits + (b * tokens + t) * out, (size_t)out * 4);
        memset(d_z + at, 0, (size_t)(prefix * width) * 4);
        product(tokens, width, wide, row, wide, 1, packed_back, 0, d_z + at + prefix * width, width, 0);
        product(wide, width, tokens, row, 1, wide, z + at + prefix * width, width, d_weight, width, 1);
    }
}

/* made [cells, symbols, 1 + others] -> logits [cells, vocab]: of each symbol its own, of the others the mean. */
void symbols_forward(long first, long last, long cells, long symbols, long others, long vocab, const int64_t *symbol,
                     const int64_t *other, const float *made, float *logits) {
    for (long c = first * cells; c < last * cells; c++) {
        const float *from = made + c * symbols * (1 + others);
        for (long s = 0; s < symbols; s++) logits[c * vocab + symbol[s]] = from[s * (1 + others)];
        for (long o = 0; o < others; o++) {
            float sum = 0;
            for (long s = 0; s < symbols; s++) sum += from[s * (1 + others) + 1 + o];
            logits[c * vocab + other[o]] = sum / (float)symbols;
        }
    }
}

void symbols_backward(long first, long last, long cells, long symbols, long others, long vocab, const int64_t *symbol,
                      const int64_t *other, const float *d_logits, float *d_made) {
    for (long c = first * cells; c < last * cells; c++)
        for (long s = 0; s < symbols; s++) {
            float *to = d_made + (c * symbols + s) * (1 + others);
            to[0] = d_logits[c * vocab + symbol[s]];
            for (long o = 0; o < others; o++) to[1 + o] = d_logits[c * vocab + other[o]] / (float)symbols;
        }
}

/* The halting head: q[b] of the first of an example's positions, which are `apart` floats for each example. */
void halting_forward(long first, long last, long apart, long width, const float *z, const float *weight, const float *bias,
                     float *q) {
    for (long b = first; b < last; b++)
        for (long k = 0; k < 2; k++) {
            vf dot = {0};
            for (long i = 0; i < width; i += V) dot += load(z + b * apart + i) * load(weight + k * width + i);
            q[b * 2 + k] = total(dot) + bias[k];
        }
}

/* All but q and d_q are added to. */
void halting_backward(long first, long last, long apart, long width, const float *z, const float *weight, const float *d_q,
                      float *d_z, float *d_weight, float *d_bias) {
    for (long b = first; b < last; b++)
        for (long k = 0; k < 2; k++) {
            float d = d_q[b * 2 + k];
            d_bias[k] += d;
            for (long i = 0; i < width; i += V) {
                float *to = d_z + b * apart + i, *of = d_weight + k * width + i;
                store(to, load(to) + load(weight + k * width + i) * d);
                store(of, load(of) + load(z + b * apart + i) * d);
            }
        }
}

INLINE float cross_entropy(float logit, float target, float *d) {
    float e = expf(-fabsf(logit));
    *d = (logit < 0 ? e : 1.0f) / (1.0f + e) - target;
    return (logit > 0 ? logit : 0) - logit * target + log1pf(e);
}

/* The first of the largest, as torch has it: what is no number is larger than any. */
INLINE long likeliest(const float *row, long vocab) {
    vf most = all(-INFINITY);
    for (long i = 0; i < vocab; i += V) {
        vf x = some(row + i, vocab - i);
        uint32_t none = bits(x != x);
        if (none) return i + __builtin_ctz(none);
        most = larger(x, most);
    }
    vf top = all(largest(most));
    for (long i = 0; i < vocab; i += V) {
        uint32_t here = bits(some(row + i, vocab - i) == top);
        if (here) return i + __builtin_ctz(here);
    }
    return 0;
}

/* What the logits [tokens, vocab] are worth: whether all labels are right, and which share; labels of 0 do not count. `next`:
   the halting logits after one more step, which say what going on is worth; none: nothing is learned of that. q 0: there is
   no halting head. d_q: derivatives of both losses times `by`. */
void judge(long first, long last, long tokens, long vocab, const float *logits, const int64_t *labels, const float *q,
           const float *next, const int64_t *steps, long budget, float by, float *exact, float *token, float *halt,
           float *going_on, float *d_q) {
    for (long b = first; b < last; b++) {
        long count = 0, right = 0;
        for (long t = b * tokens; t < (b + 1) * tokens; t++) {
            if (labels[t] == 0) continue;
            count++;
            right += likeliest(logits + t * vocab, vocab) == labels[t];
        }
        exact[b] = count > 0 && right == count;
        token[b] = (float)right / (float)(count ? count : 1);
        halt[b] = going_on[b] = 0;
        if (!q) continue;
        halt[b] = cross_entropy(q[b * 2], exact[b], d_q + b * 2);
        d_q[b * 2] *= by;
        d_q[b * 2 + 1] = 0;
        if (next) {
            float best = next[b * 2];
            if (steps[b] + 1 < budget && best == best && !(next[b * 2 + 1] <= best)) best = next[b * 2 + 1];
            going_on[b] = cross_entropy(q[b * 2 + 1], 1.0f / (1.0f + expf(-best)), d_q + b * 2 + 1);
            d_q[b * 2 + 1] *= by;
        }
    }
}

/* Which examples are done after this step: those that have all the steps that were asked for, or whose halting logit is above
   0, or above the one for going on (`both`); not before a random minimum length, for a share of all steps (`explore`); at the
   latest at the budget. What the log adds up: the loss; of those that are done, whether they are right, the share of right
   labels and the steps. */
void settle(long first, long last, const float *q, long both, const int64_t *asked, const int64_t *key, const int64_t *steps,
            long budget, float explore, long use, long use_length, const float *answer_loss, const float *halt,
            const float *going_on, float weight, const float *exact, const float *token, float *loss, float *finished,
            float *right, float *share, float *taken, float *q_halt) {
    for (long b = first; b < last; b++) {
        long now = steps[b] + 1;
        int over = asked ? now >= asked[b] : q && q[b * 2] > (both ? q[b * 2 + 1] : 0.0f);
        if (explore > 0) {
            int64_t drawn = folded(key[b], now);
            long least = 2 + (long)(uniform(folded(drawn, use_length)) * (float)(budget - 1));
            over &= !(now < least && (explore >= 1 || uniform(folded(drawn, use)) < explore));
        }
        float done = over || now >= budget;
        loss[b] = answer_loss[b] + weight * (halt[b] + going_on[b]);
        finished[b] = done;
        right[b] = exact[b] * done;
        share[b] = token[b] * done;
        taken[b] = (float)now * done;
        if (q) q_halt[b] = q[b * 2];
    }
}

/* One more step of each. */
void count_on(long first, long last, int64_t *steps) {
    for (long b = first; b < last; b++) steps[b]++;
}

/* What logits [tokens, vocab] say: the likeliest symbols, how likely they are (the mean of the logarithms, by softmax), and
   the mean negative logarithm of what stablemax divides by. The latter two where they are asked for. */
void read_out(long first, long last, long tokens, long vocab, const float *logits, int64_t *answers, float *sure,
              float *energy) {
    long padded = (tokens + V - 1) / V * V;
    float *soft = room(2 * padded), *stable = soft + padded;
    for (long i = 0; i < 2 * padded; i++) soft[i] = 1.0f;
    for (long b = first; b < last; b++) {
        for (long t = 0; t < tokens; t++) {
            const float *from = logits + (b * tokens + t) * vocab;
            long best = answers[b * tokens + t] = likeliest(from, vocab);
            vf by_softmax = {0}, by_stablemax = {0};
            for (long i = 0; i < vocab; i += V) {
                vf x = some(from + i, vocab - i), above = larger((vf){0}, x);
                vi there = ((vi)COUNTED + (int32_t)i < (vi){0} + (int32_t)vocab);
                if (sure) by_softmax += pick(there, exponential(x - from[best]), (vf){0});
                if (energy) by_stablemax += pick(there, (all(1.0f) + above) / (all(1.0f) - (x - above)), (vf){0});
            }
            if (sure) soft[t] = total(by_softmax);
            if (energy) stable[t] = total(by_stablemax);
        }
        for (int which = 0; which < 2; which++) {
            float *out = which ? energy : sure, *from = which ? stable : soft;
            vf logs = {0};
            for (long t = 0; out && t < padded; t += V) {
                vf x = load(from + t);
                vf known = pick(x < all(INFINITY), logarithm(x), x); /* what is no number stays so */
                logs += pick(x == (vf){0}, all(-INFINITY), known);
            }
            if (out) out[b] = (0.0f - total(logs)) / (float)tokens;
        }
    }
}

/* How far the `floats` numbers of each example moved, and how large they were: sums of squares. */
void moved(long first, long last, long floats, const float *old, const float *now, float *by, float *size) {
    for (long b = first; b < last; b++) {
        vf change = {0}, before = {0};
        for (long i = b * floats; i < (b + 1) * floats; i += V) {
            vf was = load(old + i), d = load(now + i) - was;
            change += d * d;
            before += was * was;
        }
        by[b] = total(change);
        size[b] = total(before);
    }
}

/* Of each example, on average over its positions: the norm of a row, or its first number. */
void sizes(long first, long last, long positions, long n, const float *z, float *out) {
    for (long b = first; b < last; b++) {
        float sum = 0;
        for (long p = b * positions; p < (b + 1) * positions; p++) {
            vf squares = {0};
            for (long i = 0; i < n; i += V) squares += load(z + p * n + i) * load(z + p * n + i);
            sum += sqrtf(total(squares));
        }
        out[b] = sum / (float)positions;
    }
}

void first_of(long first, long last, long positions, long n, const float *rows, float *out) {
    for (long b = first; b < last; b++) {
        float sum = 0;
        for (long p = b * positions; p < (b + 1) * positions; p++) sum += rows[p * n];
        out[b] = sum / (float)positions;
    }
}

/* Updates of weights -------------------------------------------------------------------------------------------------- */

/* The angle of (x, y), x not negative: between -pi / 2 and pi / 2, 0 for (0, 0). */
INLINE vf angle(vf y, vf x) {
    vf high = (vf)((vi)y & 0x7fffffff);
    vi steep = high > x;
    vf over = pick(steep, x, high), under = pick(steep, high, x);
    vf a = over / pick(under > (vf){0}, under, under + all(1.0f)), z = a * a;
    vf p = all(-1.7539301392e-3f);
    p = p * z + all(1.0726944059e-2f);
    p = p * z + all(-3.0804597271e-2f);
    p = p * z + all(5.7552102357e-2f);
    p = p * z + all(-8.3773154824e-2f);
    p = p * z + all(1.0942030682e-1f);
    p = p * z + all(-1.4261933109e-1f);
    p = p * z + all(1.9998266042e-1f);
    p = p * z + all(-3.3333283642e-1f);
    p = p * z * a + a;
    p = pick(steep, all(1.57079632679f) - p, p);
    return (vf)((vi)p | ((vi)y & (int32_t)0x80000000));
}

struct rates {
    float by_m, beta2, by_v, by_root, by_first, step, keep, by_average;
};

INLINE void adam(const float *grad, float *m, float *v, float *w, float *average, vi decayed, struct rates r) {
    vf g = load(grad), mean = load(m), square = load(v) * r.beta2 + g * g * r.by_v, value = load(w);
    mean += (g - mean) * r.by_m;
    value *= pick(decayed, all(r.keep), all(1.0f));
    value -= angle(mean * r.by_first, root(square * r.by_root)) * r.step;
    store(m, mean);
    store(v, square);
    store(w, value);
    if (average) store(average, load(average) + (value - load(average)) * r.by_average);
}

/* Adam-atan2 of the weights first to last, the `decayed` first of all with decay, and their average, if there is one. */
void adam_atan2(long first, long last, long decayed, float by_m, float beta2, float by_v, float by_root, float by_first,
                float step, float keep, float by_average, const float *grad, float *m, float *v, float *w, float *average) {
    struct rates r = {by_m, beta2, by_v, by_root, by_first, step, keep, by_average};
    long i = first;
    for (; i + V <= last; i += V)
        adam(grad + i, m + i, v + i, w + i, average ? average + i : 0, (vi)COUNTED < (vi){0} + (int32_t)(decayed - i), r);
    size_t rest = (size_t)(last - i) * 4;
    if (!rest) return;
    float some[5][V] = {{0}}, *all_of[] = {m + i, v + i, w + i, average ? average + i : some[3]};
    memcpy(some[4], grad + i, rest);
    for (int n = 0; n < 4; n++) memcpy(some[n], all_of[n], rest);
    adam(some[4], some[0], some[1], some[2], some[3], (vi)COUNTED < (vi){0} + (int32_t)(decayed - i), r);
    for (int n = 0; n < 4; n++) memcpy(all_of[n], some[n], rest);
}

/* Rows of a table that examples used, one step each by the sign of the sum of their gradients, and their averages. first_of[i]:
   the first example with the row of example i; grads are added up in its place. seen: the update up to which a row's average
   is right. A row may step again at the same t. */
void sign_step(long count, long width, const int64_t *rows, const int64_t *first_of, float *grads, float *value, float step,
               float keep, float *average, float ema, float by_average, int64_t *seen, long t) {
    for (long i = 0; i < count; i++)
        for (long j = 0; first_of[i] != i && j < width; j++) grads[first_of[i] * width + j] += grads[i * width + j];
    for (long i = 0; i < count; i++) {
        if (first_of[i] != i) continue;
        long at = rows[i] * width, again = average && seen[rows[i]] == t;
        float rest = average ? powf(ema, (float)(t - 1 - seen[rows[i]])) : 0;
        for (long j = 0; j < width; j++) {
            float g = grads[i * width + j], old = value[at + j];
            float now = old * keep - step * (g > 0 ? 1.0f : g < 0 ? -1.0f : g); /* what is no number stays so */
            if (average && again) average[at + j] += by_average * (now - old);
            if (average && !again) {
                float settled = old + rest * (average[at + j] - old);
                average[at + j] = settled + by_average * (now - settled);
            }
            value[at + j] = now;
        }
        if (average) seen[rows[i]] = t;
    }
}

/* Examples enter slots: slot where[i] takes the one at place[i] of those that are held for it, `ahead` of them, and starts over.
   `more`: tokens beside the label's. Of states there are none, one or two, each with a row that all its positions start from. */
void enter(long count, const int64_t *where, const int64_t *place, long ahead, long tokens, long more, const uint8_t *inputs,
           const uint8_t *labels, const int64_t *task_ids, const uint8_t *beside, int64_t *to_inputs, int64_t *to_labels,
           int64_t *to_task_ids, uint8_t *to_beside, int64_t *steps, long positions, long width, const float *start_h,
           float *h, const float *start_l, float *l) {
    for (long i = 0; i < count; i++) {
        long from = where[i] * ahead + place[i], to = where[i];
        steps[to] = 0;
        for (long t = 0; t < tokens; t++) {
            to_inputs[to * tokens + t] = inputs[from * tokens + t];
            to_labels[to * tokens + t] = labels[from * tokens + t];
        }
        to_task_ids[to] = task_ids[from];
        if (beside) memcpy(to_beside + to * more, beside + from * more, (size_t)more);
        for (long p = to * positions; p < (to + 1) * positions; p++) {
            if (start_h) memcpy(h + p * width, start_h, (size_t)width * 4);
            if (start_l) memcpy(l + p * width, start_l, (size_t)width * 4);
        }
    }
}

/* Programs ------------------------------------------------------------------------------------------------------------ */

/* What a call is given: a whole number, `each` more for every example that is done (kind 0); a float, as its bits (1); a
   place, so many bytes after an array's beginning, `each` more for every example before the first (2), or none (3). */
struct argument {
    int64_t value, each;
    int32_t kind, base;
};

/* Calls one after the other for the examples first to last, `most` at a time: calls[c] has a function's number and how many
   arguments it has. So many `turns` are taken with them, in which arrays begin `onward` bytes later each time; the calls before
   `body` belong to the first turn only; examples that all need fewer turns (`until`, if any) get no more. Array 0 is memory of
   this thread's own, of `size` bytes. `spent`, if any: nanoseconds of each function. */
void play(long count, const int32_t (*calls)[2], const struct argument *arguments, char *const *arrays, const int64_t *onward,
          long size, long body, long turns, const int64_t *until, long first, long last, long most, int64_t *spent) {
    static __thread char *held;
    static __thread long holds;
    if (size > holds) {
        free(held);
        holds = (size + 4095) / 4096 * 4096;
        held = aligned_alloc(4096, (size_t)holds);
        if (!held) abort();
    }
    const struct argument *of_body = arguments;
    for (long c = 0; c < body; c++) of_body += calls[c][1];
    for (long at = first; at < last; at += most) {
        long examples = last - at < most ? last - at : most, needed = until ? 0 : turns;
        for (long b = at; until && b < at + examples; b++) needed = until[b] > needed ? until[b] : needed;
        for (long turn = 0; turn < turns && turn < needed; turn++) {
            const struct argument *a = turn ? of_body : arguments;
            for (long c = turn ? body : 0; c < count; c++) {
                union {
                    long l;
                    float f;
                    void *p;
                } v[24];
                for (long j = 0; j < calls[c][1]; j++, a++)
                    if (a->kind == 0)
                        v[j].l = a->value + a->each * examples;
                    else if (a->kind == 1)
                        memcpy(&v[j].f, &a->value, 4);
                    else if (a->kind == 3)
                        v[j].p = 0;
                    else
                        v[j].p = (a->base ? arrays[a->base] + turn * onward[a->base] : held) + a->value + a->each * at;
                struct timespec began, ended;
                if (spent) clock_gettime(CLOCK_MONOTONIC, &began);
                switch (calls[c][0]) { CALLS }
                if (!spent) continue;
                clock_gettime(CLOCK_MONOTONIC, &ended);
                spent[calls[c][0]] += (ended.tv_sec - began.tv_sec) * 1000000000 + ended.tv_nsec - began.tv_nsec;
            }
        }
    }
}
