// Where C++ ends: status and text for the caller, and no exception further than here.
#pragma once

#include <exception>
#include <new>
#include <string_view>
#include <type_traits>

#include "core/status.h"
#include "tilewise/tilewise.h"

namespace tilewise::capi {

// Keeps the text for tilewise_last_error() of this thread, without allocating. Text that does not
// fit ends in "...".
tilewise_status fail(StatusCode code, std::string_view message);
const char* last_error();

// Calls body, which returns a Status, and turns what comes out of it into a status of the C ABI.
template <class Body>
tilewise_status guarded(const Body& body) {
  static_assert(std::is_same_v<std::invoke_result_t<Body>, Status>);
  try {
    const Status status = body();
    return status.ok() ? TILEWISE_OK : fail(status.code(), status.message());
  } catch (const std::bad_alloc&) {
    return fail(StatusCode::kOutOfMemory, "out of host memory");
  } catch (const std::exception& e) {
    return fail(StatusCode::kInternal, e.what());
  } catch (...) {
    return fail(StatusCode::kInternal, "unknown exception");
  }
}

}  // namespace tilewise::capi
