// Products of small float32 matrices, which keep a tile of the result in registers; exponentials; transposition.

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, ROWS = 6, VECTORS = 4;
#elif defined(__AVX2__)
constexpr int LANES = 8, ROWS = 6, VECTORS = 2;
#else
constexpr int LANES = 4, ROWS = 6, VECTORS = 4;
#endif

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int Integers __attribute__((vector_size(4 * LANES)));

inline Vector &at(float *place) { return *reinterpret_cast<Vector *>(place); }
inline const Vector &at(const float *place) { return *reinterpret_cast<const Vector *>(place); }

// A matrix whose element (i, k) is data[i * row + k * column].
struct Matrix {
    const float *data;
    long row, column;
};

// c (+)= A B for R rows and V vectors of columns.
template <int R, int V>
inline __attribute__((always_inline)) void tile(float *c, long c_row, Matrix a, const float *b, long b_row, long depth,
                                                bool add) {
    Vector sum[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) sum[r][v] = add ? at(c + r * c_row + v * LANES) : Vector{};
    for (long k = 0; k < depth; k++) {
        Vector row[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) row[v] = at(b + k * b_row + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) sum[r][v] += a.data[r * a.row + k * a.column] * row[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) at(c + r * c_row + v * LANES) = sum[r][v];
}

template <int V>
inline void columns(float *c, long c_row, Matrix a, const float *b, long b_row, long rows, long depth, bool add) {
    auto below = [&](long count) { c += count * c_row, a.data += count * a.row, rows -= count; };
    for (; rows >= ROWS; below(ROWS)) tile<ROWS, V>(c, c_row, a, b, b_row, depth, add);
    for (; rows >= 2; below(2)) tile<2, V>(c, c_row, a, b, b_row, depth, add);
    if (rows) tile<1, V>(c, c_row, a, b, b_row, depth, add);
}

// C (+)= A B, where C and B have `width` contiguous columns, a multiple of LANES.
void multiply(float *c, long c_row, Matrix a, const float *b, long b_row, long rows, long width, long depth, bool add) {
    long j = 0;
    for (; width - j >= VECTORS * LANES; j += VECTORS * LANES)
        columns<VECTORS>(c + j, c_row, a, b + j, b_row, rows, depth, add);
    if constexpr (VECTORS == 4)
        if (width - j >= 3 * LANES) columns<3>(c + j, c_row, a, b + j, b_row, rows, depth, add), j += 3 * LANES;
    for (; width - j >= LANES; j += LANES) columns<1>(c + j, c_row, a, b + j, b_row, rows, depth, add);
}

inline long round_up(long count) { return (count + LANES - 1) / LANES * LANES; }

inline long offset(const long *step, long row, long head, long token) {
    return row * step[0] + head * step[1] + token * step[2];
}

// exp of numbers up to 0, to about one unit in the last place; exactly 0 where the true value is below 1e-38.
inline Vector exponential(Vector x) {
    const Vector shift = Vector{} + 12582912.0f; // 1.5 · 2²³: adding it rounds to an integer
    const Vector power = (x * 1.44269504f + shift) - shift;
    const Vector rest = x - power * 0.693145752f - power * 1.42860677e-6f;
    Vector sum = rest * 1.3981999e-3f + 8.3334519e-3f;
    sum = sum * rest + 4.1666646e-2f;
    sum = sum * rest + 1.6666667e-1f;
    sum = sum * rest + 0.5f;
    sum = sum * rest * rest + rest + 1.0f;
    const Integers exponent = (__builtin_convertvector(power, Integers) + 127) << 23;
    return x < -87.0f ? Vector{} : sum * (Vector)exponent;
}

// Transposes a square of LANES rows: each step exchanges numbers at a distance of S between rows at a distance of S.
template <int S> inline __attribute__((always_inline)) void turn(Vector (&rows)[LANES]) {
    Integers upper, lower;
    for (int l = 0; l < LANES; l++) {
        upper[l] = l & S ? LANES + l - S : l;
        lower[l] = l & S ? LANES + l : l + S;
    }
#pragma GCC unroll 16
    for (int r = 0; r < LANES; r++) {
        if (r & S) continue;
        const Vector a = rows[r], b = rows[r + S];
        rows[r] = __builtin_shuffle(a, b, upper);
        rows[r + S] = __builtin_shuffle(a, b, lower);
    }
    if constexpr (2 * S < LANES) turn<2 * S>(rows);
}

} // namespace
