// Dropout in one pass over memory; torch compares, selects and scales in three passes.

#include <cstdint>

extern "C" {

// keep = bits >= least, y = keep ? x * scale : 0
void forward(const float* x, const int16_t* bits, uint8_t* keep, float* y, long count, long least, float scale,
             long threads) {
    const auto lowest = static_cast<int16_t>(least);
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (long i = 0; i < count; ++i) {
        const float scaled = x[i] * scale;  // outside of the conditional, which would otherwise become a branch
        keep[i] = bits[i] >= lowest;
        y[i] = bits[i] >= lowest ? scaled : 0.0f;
    }
}

// y = keep ? x * scale : 0
void backward(const float* x, const uint8_t* keep, float* y, long count, float scale, long threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (long i = 0; i < count; ++i) {
        const float scaled = x[i] * scale;
        y[i] = keep[i] != 0 ? scaled : 0.0f;
    }
}
}
