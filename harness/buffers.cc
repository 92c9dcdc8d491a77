#include "harness/buffers.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "harness/problem_abi.h"

namespace tilewise::harness {
namespace {

constexpr std::size_t kGuardElements = 512;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t x, std::size_t unit) { return (x + unit - 1) / unit * unit; }

// From element (0, 0, 0, 0) to past the last one.
std::size_t span_elements(const Extents& e, const Strides& s) {
  if (e.batch == 0 || e.seqlen == 0 || e.heads == 0) return 0;
  return static_cast<std::size_t>((e.batch - 1) * s.batch + (e.seqlen - 1) * s.seqlen +
                                  (e.heads - 1) * s.head + e.dim);
}

// Tensors of a forward case end with o.
bool belongs(TensorId t, Direction direction) {
  return direction == Direction::kBackward || t <= TensorId::kO;
}

}  // namespace

void Unmap::operator()(std::byte* p) const { munmap(p, length); }

Buffer::Buffer(std::size_t bytes, std::size_t guard_bytes, std::size_t shift,
               const BufferOptions& options)
    : bytes_(bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const bool guards = options.placement == Placement::kGuards;
  const std::size_t before = guards ? round_up(guard_bytes, 64) + shift : 0;
  const std::size_t usable = round_up(before + bytes + guard_bytes, page);
  const std::size_t spare = options.huge_pages ? kHugePage : 2 * page;
  const std::size_t length = usable + spare;
  void* const map =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  mapping_ = std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(map), Unmap{length});

  const auto address = reinterpret_cast<std::size_t>(map);
  begin_ = mapping_.get() + (options.huge_pages ? round_up(address, kHugePage) - address : page);
  end_ = begin_ + usable;
  if (options.huge_pages) {
    madvise(begin_, usable, MADV_HUGEPAGE);  // a wish: without them the run is only slower
  } else {
    mprotect(begin_ - page, page, PROT_NONE);
    mprotect(end_, page, PROT_NONE);
  }
  data_ = options.placement == Placement::kEndAtPage ? end_ - bytes : begin_ + before;
  std::memset(begin_, kPoison, usable);
}

bool Buffer::guards_intact() const {
  const auto intact = [](const std::byte* from, const std::byte* to) {
    return std::all_of(from, to, [](std::byte b) { return b == std::byte{kPoison}; });
  };
  return intact(begin_, data_) && intact(data_ + bytes_, end_);
}

void Buffer::poison() {
  if (bytes_ > 0) std::memset(data_, kPoison, bytes_);
}

Tensors::Tensors(const ProblemCase& c, const BufferOptions& options) : case_(c), options_(options) {
  make_views();
  const std::size_t guard = kGuardElements * sizeof(float);
  lse_ = Buffer(static_cast<std::size_t>(problem().num_rows()) * sizeof(float), guard, 0, options);
  if (problem().alibi) make_alibi();
  if (problem().varlen) make_lengths();
}

std::vector<std::span<std::byte>> Tensors::memory() const {
  std::vector<std::span<std::byte>> all;
  const auto add = [&all](const Buffer& buffer) {
    for (const auto& known : all) {
      if (known.data() == buffer.memory().data()) return;
    }
    if (!buffer.memory().empty()) all.push_back(buffer.memory());
  };
  for (const View& v : views_) {
    if (v.buffer != nullptr) add(*v.buffer);
  }
  for (const Buffer* b : {&lse_, &alibi_, &cu_seqlens_q_, &cu_seqlens_k_, &workspace_}) add(*b);
  return all;
}

void Tensors::make_views() {
  const bool packed = make_packed_qkv(TensorId::kQ, TensorId::kK, TensorId::kV);
  const bool packed_gradients =
      problem().backward() && make_packed_qkv(TensorId::kDq, TensorId::kDk, TensorId::kDv);
  const auto size = static_cast<std::size_t>(size_of(problem().dtype));
  for (int i = 0; i < kNumTensors; ++i) {
    const auto t = static_cast<TensorId>(i);
    if (!belongs(t, problem().direction)) continue;
    if (packed && t <= TensorId::kV) continue;
    if (packed_gradients && t >= TensorId::kDq) continue;
    View& v = view(t);
    v.extents = problem().extents(t);
    v.strides = problem().stride(t);
    v.buffer =
        std::make_shared<Buffer>(span_elements(v.extents, v.strides) * size, kGuardElements * size,
                                 static_cast<std::size_t>(case_.offsets[i]) * size, options_);
    v.data = v.buffer->data();
  }
}

// q, k and v of the layout "qkv" with sequences of one length really share one block, token by
// token. Offsets of their own take them apart.
bool Tensors::make_packed_qkv(TensorId q, TensorId k, TensorId v) {
  const AttentionProblem& p = problem();
  const Extents tokens = p.extents(q);
  if (tokens.seqlen != p.extents(k).seqlen || tokens.batch == 0 || tokens.seqlen == 0) return false;
  for (const TensorId t : {q, k, v}) {
    if (p.stride(t) != default_strides(p, t, Layout::kQkv)) return false;
    if (case_.offsets[static_cast<int>(t)] != case_.offsets[static_cast<int>(q)]) return false;
  }
  const auto size = static_cast<std::size_t>(size_of(p.dtype));
  const auto elements = static_cast<std::size_t>(tokens.batch * tokens.seqlen * p.stride(q).seqlen);
  const auto offset = static_cast<std::size_t>(case_.offsets[static_cast<int>(q)]);
  const auto buffer =
      std::make_shared<Buffer>(elements * size, kGuardElements * size, offset * size, options_);
  std::byte* data = buffer->data();
  for (const TensorId t : {q, k, v}) {
    const Extents e = p.extents(t);
    view(t) = {buffer, data, e, p.stride(t), 0};
    data += static_cast<std::size_t>(e.heads * e.dim) * size;
  }
  return true;
}

void Tensors::make_lengths() {
  const auto cumulate = [this](const std::vector<int32_t>& lengths) {
    Buffer b((lengths.size() + 1) * sizeof(int32_t), kGuardElements * sizeof(int32_t), 0, options_);
    auto* out = reinterpret_cast<int32_t*>(b.data());
    out[0] = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) out[i + 1] = out[i] + lengths[i];
    return b;
  };
  cu_seqlens_q_ = cumulate(case_.lengths_q);
  cu_seqlens_k_ = cumulate(case_.lengths_k);
}

// One set of slopes for all batches when the seed is even, one for each when it is odd.
void Tensors::make_alibi() {
  alibi_batch_stride_ = case_.seed % 2 == 1 ? problem().num_heads : 0;
  const int64_t sets = alibi_batch_stride_ == 0 ? 1 : std::max<int64_t>(problem().batch, 1);
  alibi_ = Buffer(static_cast<std::size_t>(sets * problem().num_heads) * sizeof(float),
                  kGuardElements * sizeof(float), 0, options_);
}

void* Tensors::pointer(TensorId t) const { return view(t).data; }

float* Tensors::alibi_slopes() const {
  return problem().alibi ? reinterpret_cast<float*>(alibi_.data()) : nullptr;
}
int32_t* Tensors::cu_seqlens_q() const {
  return problem().varlen ? reinterpret_cast<int32_t*>(cu_seqlens_q_.data()) : nullptr;
}
int32_t* Tensors::cu_seqlens_k() const {
  return problem().varlen ? reinterpret_cast<int32_t*>(cu_seqlens_k_.data()) : nullptr;
}

void* Tensors::make_workspace(uint64_t bytes, uint64_t align) {
  workspace_bytes_ = bytes;
  if (bytes == 0) return nullptr;
  const std::size_t unit = std::max<std::size_t>(align, 64);
  workspace_ =
      Buffer(round_up(bytes, unit), round_up(kGuardElements * sizeof(float), unit), 0, options_);
  return workspace_.data();
}

std::byte* Tensors::element(TensorId t, int64_t b, int64_t s, int64_t h) const {
  const View& v = view(t);
  return v.data + (b * v.strides.batch + s * v.strides.seqlen + h * v.strides.head) *
                      size_of(problem().dtype);
}

double Tensors::get(TensorId t, int64_t b, int64_t s, int64_t h, int64_t x) const {
  return load_element(problem().dtype, element(t, b, s, h) + x * size_of(problem().dtype));
}

void Tensors::set(TensorId t, int64_t b, int64_t s, int64_t h, int64_t x, double value) {
  store_element(problem().dtype, element(t, b, s, h) + x * size_of(problem().dtype), value);
}

void Tensors::get_row(TensorId t, int64_t b, int64_t s, int64_t h, double* out) const {
  const std::byte* row = element(t, b, s, h);
  const int size = size_of(problem().dtype);
  for (int64_t x = 0; x < view(t).extents.dim; ++x) {
    out[x] = load_element(problem().dtype, row + x * size);
  }
}

void Tensors::set_row(TensorId t, int64_t b, int64_t s, int64_t h, const double* values) {
  std::byte* row = element(t, b, s, h);
  const int size = size_of(problem().dtype);
  for (int64_t x = 0; x < view(t).extents.dim; ++x) {
    store_element(problem().dtype, row + x * size, values[x]);
  }
}

float Tensors::get_lse(int64_t b, int64_t s, int64_t h) const {
  const AttentionProblem& p = problem();
  return lse()[p.varlen ? h * p.total_q + s : (b * p.num_heads + h) * p.seqlen_q + s];
}

std::vector<std::byte> Tensors::packed(TensorId t) const {
  const Extents e = view(t).extents;
  const auto row = static_cast<std::size_t>(e.dim * size_of(problem().dtype));
  std::vector<std::byte> out(static_cast<std::size_t>(e.batch * e.seqlen * e.heads) * row);
  std::byte* to = out.data();
  for (int64_t b = 0; b < e.batch; ++b) {
    for (int64_t s = 0; s < e.seqlen; ++s) {
      for (int64_t h = 0; h < e.heads; ++h, to += row) std::memcpy(to, element(t, b, s, h), row);
    }
  }
  return out;
}

std::vector<float> Tensors::packed_lse() const { return {lse(), lse() + problem().num_rows()}; }

}  // namespace tilewise::harness
