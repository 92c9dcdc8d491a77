// Calls in CUDA graphs: replays give the bits of plain calls, on whatever the memory then holds.
#include <algorithm>
#include <utility>

#include "tests/cuda/device_case.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

// Pairs of cases of the same tensors: what a graph is captured with, and what it is replayed on.
const std::pair<const char*, const char*> kCases[] = {
    {"bf16 b2 sq130 sk200 h4 hk2 d64 causal", "bf16 b2 sq130 sk200 h4 hk2 d64 causal seed:9"},
    {"fp16 b1 sq257 h2 d128", "fp16 b1 sq257 h2 d128 data:needle seed:3"},
    {"bf16 b1 sq1 sk5000 h8 hk1 d128", "bf16 b1 sq1 sk5000 h8 hk1 d128 seed:5"},  // splits
    {"fp16 b2 sq77 sk90 h4 d80 softcap:20 alibi",
     "fp16 b2 sq77 sk90 h4 d80 softcap:20 alibi seed:2"},
    {"bf16 varlen:q=3,70,0,200:k=90,70,5,333 h4 hk2 d64 causal",
     "bf16 varlen:q=200,3,70,0:k=5,333,90,70 h4 hk2 d64 causal seed:8"},
    {"fp16 varlen:q=1,1,1:k=900,70,5000 h4 hk2 d128",
     "fp16 varlen:q=1,1,1:k=70,5000,900 h4 hk2 d128 seed:4"},
    {"bf16 b3 sq5 sk0 h2 d64", "bf16 b3 sq5 sk0 h2 d64 seed:1"},  // B047
    {"bf16 b2 sq130 sk200 h4 hk2 d64 causal backward",
     "bf16 b2 sq130 sk200 h4 hk2 d64 causal backward seed:9"},
    {"fp16 b1 sq257 h2 d128 backward deterministic",
     "fp16 b1 sq257 h2 d128 data:needle backward deterministic seed:3"},
    {"fp16 b2 sq77 sk90 h4 d80 softcap:20 alibi backward deterministic",
     "fp16 b2 sq77 sk90 h4 d80 softcap:20 alibi backward deterministic seed:2"},
    {"bf16 varlen:q=3,70,0,200:k=90,70,5,333 h4 hk2 d64 causal backward deterministic",
     "bf16 varlen:q=200,3,70,0:k=5,333,90,70 h4 hk2 d64 causal backward deterministic seed:8"},
    {"bf16 b3 sq5 sk0 h2 d64 backward deterministic",
     "bf16 b3 sq5 sk0 h2 d64 backward deterministic seed:1"},
};

// A captured call.
class Graph {
 public:
  Graph(DeviceCase& c, const Stream& stream) {
    // Global: whatever is forbidden during a capture spoils it, on any thread.
    require(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
    status_ = c.launch();
    require(cudaStreamEndCapture(stream.get(), &graph_));
    require(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  ~Graph() {
    (void)cudaGraphExecDestroy(exec_);
    (void)cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  tilewise_status status() const { return status_; }
  void replay(const Stream& stream) const { require(cudaGraphLaunch(exec_, stream.get())); }
  std::vector<cudaGraphNodeType> nodes() const {
    size_t count = 0;
    require(cudaGraphGetNodes(graph_, nullptr, &count));
    std::vector<cudaGraphNode_t> all(count);
    require(cudaGraphGetNodes(graph_, all.data(), &count));
    std::vector<cudaGraphNodeType> types(count);
    for (size_t i = 0; i < count; ++i) require(cudaGraphNodeGetType(all[i], &types[i]));
    return types;
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  tilewise_status status_ = TILEWISE_OK;
};

class Graphs : public DeviceTest {};

TEST_F(Graphs, HoldTheKernelsAndNothingElse_C3_B065) {
  for (const auto& [line, unused] : kCases) {
    SCOPED_TRACE(line);
    const Stream stream;
    DeviceCase c(line, stream.get());
    const Graph graph(c, stream);
    ASSERT_EQ(graph.status(), TILEWISE_OK) << tilewise_last_error();
    EXPECT_TRUE(c.untouched()) << "the call ran when it was captured";
    // A backward: delta, the blocks of keys, dq.
    const size_t kernels = case_of(line).problem.backward()   ? 3
                           : info_of(c.plan()).num_splits > 1 ? 2
                                                              : 1;
    EXPECT_EQ(graph.nodes(), std::vector(kernels, cudaGraphNodeTypeKernel));
  }
}

TEST_F(Graphs, ReplaysGiveTheBitsOfCallsOnNewDataAndLengths_C3_B066) {
  for (const auto& [line, other] : kCases) {
    SCOPED_TRACE(line);
    const Stream stream;
    ProblemCase first = case_of(line), second = case_of(other);
    DeviceCase c(first, stream.get());
    const Graph graph(c, stream);
    for (uint64_t i = 0; i < 20; ++i) {
      ProblemCase& data = i % 2 == 0 ? first : second;
      data.seed += 100 * i;
      c.refill(data);
      graph.replay(stream);
      const Bits got = c.outputs();
      c.refill(data);
      EXPECT_TRUE(got == c.run()) << "replay " << i;
    }
  }
}

TEST_F(Graphs, TenThousandReplays_C3) {
  const Stream stream;
  for (const char* line : {"bf16 b1 sq64 h2 d64 causal", "bf16 b1 sq1 sk2000 h2 d64",
                           "bf16 b1 sq200 h2 d64 causal backward deterministic"}) {
    DeviceCase c(line, stream.get());
    const Bits want = c.run();
    const Graph graph(c, stream);
    c.refill(case_of(line));
    for (int i = 0; i < 10000; ++i) graph.replay(stream);
    EXPECT_TRUE(c.outputs() == want) << line;
  }
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total));
  return free;
}

TEST_F(Graphs, ThousandCapturesLeaveNoMemoryBehind_C8) {
  const Stream stream;
  DeviceCase c("bf16 b1 sq1 sk2000 h2 d64", stream.get());
  const auto round = [&] {
    const Graph graph(c, stream);
    graph.replay(stream);
    stream.wait();
  };
  for (int i = 0; i < 10; ++i) round();
  const size_t before = free_bytes();
  for (int i = 0; i < 1000; ++i) round();
  EXPECT_LE(before - std::min(before, free_bytes()), size_t{1} << 20);
}

}  // namespace
}  // namespace tilewise::cuda::test
