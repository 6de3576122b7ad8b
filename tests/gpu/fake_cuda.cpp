// A CUDA device without a GPU, for fake tensors only: they have shapes, dtypes and a device, but no data.
//
// PyTorch asks three things of a device that its CPU wheel lacks: a guard (current device, streams, events), hooks (is
// there a device?), and the choice among the back ends of scaled_dot_product_attention. Kernels are never called.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

const Device kDevice(DeviceType::CUDA, 0);
const Stream kStream(Stream::DEFAULT, kDevice);

// The base class ignores changes of the device and has no events; the autograd engine uses both.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device exchangeDevice(Device) const override { return kDevice; }
  Device getDevice() const override { return kDevice; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  Stream getStream(Device) const noexcept override { return kStream; }
  Stream getNewStream(Device, int) const override { return kStream; }
  Stream exchangeStream(Stream) const noexcept override { return kStream; }
  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    *event = const_cast<Guard*>(this);  // any address but null
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
};

bool takes_all_dtypes(const sdp::sdp_params& p, bool single) {
  constexpr auto half = std::to_array<at::ScalarType>({at::kHalf, at::kBFloat16});
  constexpr auto any = std::to_array<at::ScalarType>({at::kHalf, at::kFloat, at::kBFloat16});
  return single ? sdp::check_tensor_dtype(p, any, false) : sdp::check_tensor_dtype(p, half, false);
}

// can_use_flash_attention and can_use_mem_efficient_attention of ATen/native/transformers/cuda/sdp_utils.cpp for dense
// tensors on compute capability 8.0 and 9.0. The checks that are not in a header are written out here.
bool runs_flash(const sdp::sdp_params& p) {
  const auto width = p.query.size(-1);
  return sdp::check_tensor_shapes(p, false) && sdp::check_for_attn_mask(p, false) &&
      width == p.key.size(-1) && width == p.value.size(-1) && width <= 256 &&
      !(p.is_causal && p.query.size(-2) != p.key.size(-2)) && takes_all_dtypes(p, false) &&
      sdp::check_batch_size_and_num_heads_dense<true, true>(p, false) &&
      sdp::check_nonzero_sequence_lengths_dense(p, false) &&
      sdp::check_last_dim_stride_equals_1_dense<true>(p, false);
}

bool runs_efficient(const sdp::sdp_params& p) {
  const int64_t multiple = 16 / static_cast<int64_t>(p.query.element_size());
  const auto aligned = [&](const at::Tensor& t) {
    return t.size(-1) > 0 && t.size(-1) % multiple == 0 && t.storage_offset() % multiple == 0;
  };
  return sdp::check_tensor_shapes(p, false) && p.query.size(-1) == p.key.size(-1) && aligned(p.query) &&
      aligned(p.key) && aligned(p.value) && takes_all_dtypes(p, true) &&
      sdp::check_nonzero_sequence_lengths_dense(p, false) &&
      sdp::check_last_dim_stride_equals_1_dense<false>(p, false) &&
      sdp::check_batch_size_and_num_heads_dense<true, true>(p, false);
}

// cuDNN comes first on compute capability 9.0. Without a mask, where it serves, the other kernels stand for it here.
bool runs_cudnn(const sdp::sdp_params& p) {
  return at::globalContext().userEnabledCuDNNSDP() && p.attn_mask.has_value() && runs_efficient(p) &&
      p.query.scalar_type() != at::kFloat && p.query.size(-1) <= 128 && p.value.size(-1) <= 128;
}

int64_t choose(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
    double dropout, bool causal, std::optional<double>, bool gqa) {
  const sdp::sdp_params params{query, key, value, mask, dropout, causal, gqa};
  const auto backend = runs_cudnn(params)  ? at::SDPBackend::cudnn_attention
      : runs_flash(params)                ? at::SDPBackend::flash_attention
      : runs_efficient(params)            ? at::SDPBackend::efficient_attention
                                          : at::SDPBackend::math;
  return static_cast<int64_t>(backend);
}

}  // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
}
namespace at {
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", Hooks)
}
namespace at::native {
const static struct Register {
  Register() { _fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose); }
} register_choice;
}
