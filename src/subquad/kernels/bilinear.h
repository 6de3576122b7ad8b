// Shared by the forward and backward pass of DBA's self-attention: operands, memory, threads, and the maps that depend
// on Z and the weights only.

#include <omp.h>

#include "matrices.h"

namespace {

constexpr long TOKENS = 96; // tokens of a tile
constexpr float LEAST = -3e38f;

struct Call {
    long batch, tokens, dim, p, e, heads, z_step, threads, keep; // keep: whether there will be a backward pass
    float root; // square root of the scale of the logits between compressed rows
    const float *x, *z, *wq, *bq, *wk, *wv, *bv, *fc, *fr, *br, *wo, *bo, *r;
    const unsigned char *seen;     // [batch, tokens] or null
    float *y, *a, *scratch, *kept; // a: [batch, 3 p, d]; kept: Maps, then Row of each row of the batch
};

// Divides a block of memory into arrays; with a null pointer, only counts its size.
struct Memory {
    float *start, *end;

    explicit Memory(float *at) : start(at), end(at) {}
    float *take(long count) { return end += round_up(count), end - round_up(count); }
    long size() const { return end - start; }
};

// Depends on Z and the weights only: [Z; R √scale], its products with W_Q and W_K, and Gᵀ.
struct Maps {
    float *zr, *gq, *gk, *g;
    long size;

    Maps(const Call &c, float *at) {
        const long all = (c.p + c.e) * c.dim;
        Memory m(at);
        zr = m.take(all), gq = m.take(all), gk = m.take(all), g = m.take(4 * c.p * c.dim);
        size = m.size();
    }
};

// Results of the forward pass for a row of the batch, which the backward pass reads: Qᵀ, Kᵀ, Vᵀ, Pᵀ of each head, Uᵀ,
// Oᵀ, W'_r and, if there will be a backward pass, the logits of W_r, W_c and W'_c, with their maxima and the factors
// that normalise their exponentials.
struct Row {
    float *q, *k, *v, *weights, *u, *o, *spread, *logits, *top, *inverse;
    long size;

    Row(const Call &c, float *at) {
        const long d = c.dim, p = c.p, logit_count = c.keep ? c.tokens * 3 * p : 0;
        Memory m(at);
        q = m.take(c.e * p), k = m.take(c.e * p), v = m.take(d * p), weights = m.take(c.heads * p * p);
        u = m.take(d * p), o = m.take(d * p), spread = m.take(c.tokens * p), logits = m.take(logit_count);
        top = m.take(3 * p), inverse = m.take(3 * p);
        size = m.size();
    }
};

inline float *maps_of(const Call &c, long number) { return c.kept + (c.z_step ? number * Maps(c, nullptr).size : 0); }

inline float *row_of(const Call &c, long number) {
    return maps_of(c, c.batch - 1) + Maps(c, nullptr).size + number * Row(c, nullptr).size;
}

inline Vector larger(Vector x, Vector y) { return x > y ? x : y; }
inline Vector plus(Vector x, Vector y) { return x + y; }

// Reduces the numbers of a vector with f; every lane holds the result.
template <class F> inline Vector fold(Vector x, F f) {
#pragma GCC unroll 4
    for (int s = LANES / 2; s; s /= 2) {
        Integers other;
#pragma GCC unroll 16
        for (int l = 0; l < LANES; l++) other[l] = l ^ s;
        x = f(x, __builtin_shuffle(x, other));
    }
    return x;
}

// Transposes [rows, columns], both multiples of LANES, to [columns, rows].
void transpose(float *to, long to_step, const float *from, long step, long rows, long columns) {
    for (long i = 0; i < rows; i += LANES)
        for (long j = 0; j < columns; j += LANES) {
            Vector square[LANES];
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++) square[r] = at(from + (i + r) * step + j);
            turn<1>(square);
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++) at(to + (j + r) * to_step + i) = square[r];
        }
}

// The threads that process the same row of the batch. Each of them executes the same functions.
struct ThreadTeam {
    const Call &c;
    const long rank, size;

    void wait() const {
        if (size > 1) {
#pragma omp barrier
        }
    }

    // Calls f(first, number) for this thread's share of `count` items, in multiples of `unit`.
    template <class F> void share(long count, long unit, F f) const {
        const long units = (count + unit - 1) / unit, from = units * rank / size * unit;
        long to = units * (rank + 1) / size * unit;
        if (to > count) to = count;
        if (to > from) f(from, to - from);
    }

    // Calls f(first, number) for each tile of this thread's tokens.
    template <class F> void tiles(F f) const {
        share(c.tokens, 1, [&](long from, long count) {
            for (long i = from; i < from + count; i += TOKENS)
                f(i, from + count - i < TOKENS ? from + count - i : TOKENS);
        });
    }
};

} // namespace
