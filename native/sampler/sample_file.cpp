#include "sample_file.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>

#include "failure.h"

namespace genie {
namespace {

constexpr std::size_t kHeaderBytes = 4096;
constexpr std::uint64_t kGrowthRecords = 1 << 14;  // 1 MiB
constexpr std::size_t kCapacityAt = 24, kCommittedAt = 64, kDroppedAt = 72, kIntervalAt = 80;

template <typename T>
void put(char* memory, std::size_t offset, T value) {
    std::memcpy(memory + offset, &value, sizeof value);
}

void publish(char* memory, std::size_t offset, std::uint64_t value) {
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(memory + offset))
        .store(value, std::memory_order_release);
}

}  // namespace

SampleFile::SampleFile(const std::string& path, std::uint32_t ports, std::uint64_t interval_ns)
    : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (!file_.valid()) fail_errno(path);
    if (!grow()) fail_errno(path + ": reserve space");
    std::memcpy(memory_, "GNIESMP1", 8);
    put<std::uint32_t>(memory_, 8, 1);
    put<std::uint32_t>(memory_, 12, sizeof(SampleRecord));
    put<std::uint32_t>(memory_, 16, ports);
    put<std::uint64_t>(memory_, kIntervalAt, interval_ns);
}

SampleFile::~SampleFile() {
    if (memory_ == nullptr) return;
    publish(memory_, kCapacityAt, committed_);
    ::munmap(memory_, mapped_bytes_);
    // If this fails, the file is merely longer than it need be: readers go by the commit counter.
    [[maybe_unused]] const int result =
        ::ftruncate(file_.get(), static_cast<off_t>(kHeaderBytes + committed_ * sizeof(SampleRecord)));
}

bool SampleFile::grow() {
    const std::uint64_t capacity = capacity_ + kGrowthRecords;
    const std::size_t size = kHeaderBytes + capacity * sizeof(SampleRecord);
    // Blocks are reserved now: a full disk is an error here and not a SIGBUS at a store.
    if (const int error = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(size)); error != 0) {
        errno = error;
        return false;
    }
    void* mapping = memory_ == nullptr
                        ? ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0)
                        : ::mremap(memory_, mapped_bytes_, size, MREMAP_MAYMOVE);
    if (mapping == MAP_FAILED) return false;
    memory_ = static_cast<char*>(mapping);
    mapped_bytes_ = size;
    capacity_ = capacity;
    publish(memory_, kCapacityAt, capacity_);
    return true;
}

void SampleFile::append(const SampleRecord& record) {
    if (committed_ == capacity_ && !grow()) {
        publish(memory_, kDroppedAt, ++dropped_);
        return;
    }
    std::memcpy(memory_ + kHeaderBytes + committed_ * sizeof record, &record, sizeof record);
    publish(memory_, kCommittedAt, ++committed_);
}

}  // namespace genie
