//! GPUs: how to find one, and what it says about itself.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::attribute::DeviceAttribute;
use crate::context::Primary;
use crate::driver::{ContextHandle, DeviceHandle, Driver};
use crate::error::{CudaError, Error, Result};
use crate::flush::FlushMethod;
use crate::gpu_name::{GpuName, Uuid};
use crate::host_function;

/// Space for a name or an address of a device, with its NUL.
const TEXT_SIZE: u16 = 256;

/// A GPU of this machine. Clones are the same GPU.
///
/// To list GPUs and to read their attributes costs little; the first use of a GPU's memory creates
/// its primary context, which takes some hundred milliseconds and some hundred megabytes.
#[derive(Clone)]
pub struct Gpu(Arc<Described>);

struct Described {
    driver: &'static Driver,
    device: DeviceHandle,
    ordinal: i32,
    name: String,
    pci_id: String,
    uuid: Uuid,
    primary: Mutex<Option<Arc<Primary>>>,
    flush_method: OnceLock<FlushMethod>,
}

impl Gpu {
    /// All GPUs that the process may use, by ordinal.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] on a machine without a driver or a GPU.
    pub fn all() -> Result<Vec<Self>> {
        Driver::load()?.gpus()
    }

    /// The GPU with an ordinal.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] on a machine without a driver or a GPU, [`CudaError::INVALID_DEVICE`] if
    /// there are fewer GPUs.
    pub fn new(ordinal: i32) -> Result<Self> {
        Driver::load()?.gpu(ordinal)
    }

    /// The GPU that a name selects.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] on a machine without a driver or a GPU, [`Error::NoSuchGpu`] if the
    /// process may use no such GPU.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let gpu = rdma_cuda::Gpu::find(&"0000:1b:00.0".parse()?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn find(name: &GpuName) -> Result<Self> {
        Driver::load()?.find_gpu(name)
    }

    pub(crate) fn describe(driver: &'static Driver, device: DeviceHandle, ordinal: i32) -> Result<Self> {
        let mut uuid = [0; 16];
        // SAFETY: cuDeviceGetUuid requires space for 16 bytes, and a device of cuDeviceGet.
        unsafe { driver.cuDeviceGetUuid(&raw mut uuid, device) }?;
        let name = text(|buffer, size| {
            // SAFETY: cuDeviceGetName requires space for `size` bytes, and a device of cuDeviceGet.
            unsafe { driver.cuDeviceGetName(buffer, size, device) }
        })?;
        let pci_id = text(|buffer, size| {
            // SAFETY: cuDeviceGetPCIBusId requires the same as cuDeviceGetName.
            unsafe { driver.cuDeviceGetPCIBusId(buffer, size, device) }
        })?;
        let pci_id = pci_id.to_ascii_lowercase();
        let (primary, flush_method) = (Mutex::new(None), OnceLock::new());
        let uuid = Uuid(uuid);
        Ok(Self(Arc::new(Described { driver, device, ordinal, name, pci_id, uuid, primary, flush_method })))
    }

    /// The driver of this GPU.
    #[must_use]
    pub fn driver(&self) -> &'static Driver {
        self.0.driver
    }

    /// The GPU's number among those that the process may use.
    #[must_use]
    pub fn ordinal(&self) -> i32 {
        self.0.ordinal
    }

    /// The product's name, such as `NVIDIA H100 80GB HBM3`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The PCI address as sysfs writes it, such as `0000:1b:00.0`.
    #[must_use]
    pub fn pci_id(&self) -> &str {
        &self.0.pci_id
    }

    /// The identity of the GPU, the same in every process.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.0.uuid
    }

    /// The size of the GPU's memory in bytes.
    ///
    /// # Errors
    ///
    /// If the driver does not say.
    pub fn total_memory(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: cuDeviceTotalMem requires space for a size, and a device of cuDeviceGet.
        unsafe { self.0.driver.cuDeviceTotalMem_v2(&raw mut bytes, self.0.device) }?;
        Ok(bytes)
    }

    /// The value of an attribute.
    ///
    /// # Errors
    ///
    /// [`CudaError::INVALID_VALUE`] if the driver does not know the attribute.
    pub fn attribute(&self, attribute: DeviceAttribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: cuDeviceGetAttribute requires space for an integer and a device of cuDeviceGet;
        // it takes any number for an attribute.
        unsafe { self.0.driver.cuDeviceGetAttribute(&raw mut value, attribute.0, self.0.device) }?;
        Ok(value)
    }

    /// Whether an attribute is known and not 0.
    #[must_use]
    pub fn has(&self, attribute: DeviceAttribute) -> bool {
        self.attribute(attribute).is_ok_and(|value| value != 0)
    }

    /// The compute capability: major and minor number.
    ///
    /// # Errors
    ///
    /// If the driver does not say.
    pub fn compute_capability(&self) -> Result<(i32, i32)> {
        let major = self.attribute(DeviceAttribute::COMPUTE_CAPABILITY_MAJOR)?;
        Ok((major, self.attribute(DeviceAttribute::COMPUTE_CAPABILITY_MINOR)?))
    }

    /// Whether this GPU can access the memory of another one, over PCIe or NVLink. Copies between
    /// GPUs without such access go through host memory, which the driver arranges.
    ///
    /// # Errors
    ///
    /// If the driver does not say.
    pub fn can_access(&self, other: &Self) -> Result<bool> {
        let mut can = 0;
        // SAFETY: cuDeviceCanAccessPeer requires space for an integer, and devices of cuDeviceGet.
        unsafe { self.0.driver.cuDeviceCanAccessPeer(&raw mut can, self.0.device, other.0.device) }?;
        Ok(can != 0)
    }

    /// Waits until all work that any thread has given to this GPU's primary context is done.
    ///
    /// # Errors
    ///
    /// The error of an earlier work item that failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: cuCtxSynchronize requires a current context: `with` sets it.
        Ok(self.with(|driver| unsafe { driver.cuCtxSynchronize() })?)
    }

    /// Makes the RDMA writes that have completed visible to all work that is launched on this GPU
    /// from now on (`cuFlushGPUDirectRDMAWrites`).
    ///
    /// # Errors
    ///
    /// [`CudaError::NOT_SUPPORTED`] if the flush options
    /// ([`DeviceAttribute::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`]) lack bit 0.
    pub fn flush_rdma_writes(&self) -> Result<()> {
        let (current_context, to_owner) = (0, 100);
        // SAFETY: cuFlushGPUDirectRDMAWrites requires a current context: `with` sets it.
        Ok(self.with(|driver| unsafe { driver.cuFlushGPUDirectRDMAWrites(current_context, to_owner) })?)
    }

    /// The method that makes a NIC's writes visible to this GPU.
    #[must_use]
    pub fn flush_method(&self) -> FlushMethod {
        if host_function::refuses_calls() {
            // A host function cannot ask the driver. A read by the NIC does for every GPU.
            return self.0.flush_method.get().copied().unwrap_or(FlushMethod::ReadBack);
        }
        *self.0.flush_method.get_or_init(|| {
            // A driver that does not know the attributes has neither.
            let value = |attribute| self.attribute(attribute).unwrap_or(0);
            let ordering = value(DeviceAttribute::GPU_DIRECT_RDMA_WRITES_ORDERING);
            FlushMethod::of(ordering, value(DeviceAttribute::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS))
        })
    }

    fn is_named(&self, name: &GpuName) -> bool {
        match name {
            GpuName::Ordinal(ordinal) => *ordinal == self.ordinal(),
            GpuName::PciId(id) => id == self.pci_id(),
            GpuName::Uuid(uuid) => *uuid == self.uuid(),
        }
    }

    pub(crate) fn device(&self) -> DeviceHandle {
        self.0.device
    }

    /// Calls the driver with the primary context current in this thread.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&'static Driver) -> Result<T, CudaError>) -> Result<T, CudaError> {
        self.primary()?.with(call)
    }

    /// The handle of the primary context, which stays valid as long as this GPU.
    pub(crate) fn context(&self) -> Result<ContextHandle, CudaError> {
        Ok(self.primary()?.handle())
    }

    fn primary(&self) -> Result<Arc<Primary>, CudaError> {
        let mut primary = self.0.primary.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(primary) = &*primary {
            return Ok(Arc::clone(primary));
        }
        let retained = Arc::new(Primary::retain(self.0.driver, self.0.device)?);
        Ok(Arc::clone(primary.insert(retained)))
    }
}

impl Driver {
    /// All GPUs that the process may use: `CUDA_VISIBLE_DEVICES` selects them.
    ///
    /// # Errors
    ///
    /// If the driver cannot describe a GPU.
    pub fn gpus(&'static self) -> Result<Vec<Gpu>> {
        let mut count = 0;
        // SAFETY: cuDeviceGetCount requires space for an integer.
        unsafe { self.cuDeviceGetCount(&raw mut count) }?;
        (0..count).map(|ordinal| self.gpu(ordinal)).collect()
    }

    /// The GPU with an ordinal, which counts from 0 the GPUs that the process may use.
    ///
    /// # Errors
    ///
    /// [`CudaError::INVALID_DEVICE`] if there are fewer GPUs.
    pub fn gpu(&'static self, ordinal: i32) -> Result<Gpu> {
        let mut device = 0;
        // SAFETY: cuDeviceGet requires space for an integer.
        unsafe { self.cuDeviceGet(&raw mut device, ordinal) }?;
        Gpu::describe(self, device, ordinal)
    }

    /// The GPU that a name selects.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchGpu`] if the process may use no such GPU.
    pub fn find_gpu(&'static self, name: &GpuName) -> Result<Gpu> {
        let gpus = self.gpus()?;
        let listed = gpus.iter().map(|gpu| format!("{} = {}", gpu.ordinal(), gpu.pci_id()));
        let there = listed.collect::<Vec<_>>().join(", ");
        let found = gpus.into_iter().find(|gpu| gpu.is_named(name));
        found.ok_or_else(|| Error::NoSuchGpu { name: name.clone(), there })
    }
}

impl PartialEq for Gpu {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0.driver, other.0.driver) && self.0.device == other.0.device
    }
}

impl Eq for Gpu {}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({}, {})", self.0.ordinal, self.0.pci_id)
    }
}

impl fmt::Display for Gpu {
    /// Writes the name and the PCI address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0.name, self.0.pci_id)
    }
}

/// The text that a call writes into a buffer of the given size.
fn text(call: impl FnOnce(*mut std::ffi::c_char, c_int) -> Result<(), CudaError>) -> Result<String, Error> {
    let mut buffer = [0_u8; TEXT_SIZE as usize];
    call(buffer.as_mut_ptr().cast(), TEXT_SIZE.into())?;
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use crate::{CudaError, DeviceAttribute, GpuName, Uuid, testing};

    #[test]
    fn a_gpu_describes_itself() {
        for gpu in testing::driver().gpus().unwrap() {
            assert!(!gpu.name().is_empty());
            assert!(gpu.total_memory().unwrap() > 1 << 20);
            assert!(gpu.compute_capability().unwrap().0 >= 3);
            assert_eq!(gpu, testing::driver().gpu(gpu.ordinal()).unwrap());
            let (bus, function) = gpu.pci_id().rsplit_once('.').unwrap();
            assert_eq!(bus.split(':').count(), 3, "{gpu}");
            assert!(function.len() == 1 && gpu.pci_id() == gpu.pci_id().to_lowercase(), "{gpu}");
            gpu.synchronize().unwrap();
        }
    }

    #[test]
    fn an_ordinal_too_many_is_an_error() {
        let driver = testing::driver();
        let count = i32::try_from(driver.gpus().unwrap().len()).unwrap();
        let error = driver.gpu(count).unwrap_err();
        assert_eq!(error.cuda().unwrap().code(), CudaError::INVALID_DEVICE);
        assert!(error.to_string().starts_with("cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101): "), "{error}");
    }

    #[test]
    fn an_unknown_attribute_is_an_error_and_not_had() {
        let gpu = testing::driver().gpu(0).unwrap();
        let unknown = DeviceAttribute(1_000_000);
        assert_eq!(gpu.attribute(unknown).unwrap_err().cuda().unwrap().code(), CudaError::INVALID_VALUE);
        assert!(!gpu.has(unknown));
    }

    #[test]
    fn contexts_are_used_from_many_threads() {
        let gpus = testing::driver().gpus().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let gpu = &gpus[thread % gpus.len()];
                scope.spawn(|| (0..50).for_each(|_| gpu.synchronize().unwrap()));
            }
        });
    }

    #[test]
    fn gpus_say_whose_memory_they_can_access() {
        let driver = testing::stand_in();
        let can = |from, to| driver.gpu(from).unwrap().can_access(&driver.gpu(to).unwrap()).unwrap();
        assert_eq!([can(0, 1), can(1, 0), can(0, 2), can(0, 0)], [true, true, false, false]);
    }

    #[test]
    fn a_uuid_is_written_as_nvidia_smi_does() {
        let uuid = Uuid(std::array::from_fn(|index| u8::try_from(index).unwrap()));
        assert_eq!(uuid.to_string(), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn a_gpu_is_found_by_each_of_its_names() {
        let driver = testing::driver();
        for gpu in driver.gpus().unwrap() {
            let address = gpu.pci_id();
            let long = format!("0000{}", address.to_uppercase());
            for name in [gpu.ordinal().to_string(), gpu.uuid().to_string(), address.to_owned(), long] {
                assert_eq!(driver.find_gpu(&name.parse().unwrap()).unwrap(), gpu, "{name}");
            }
        }
        assert_eq!("1B:00.0".parse(), Ok(GpuName::PciId("0000:1b:00.0".into())));
    }

    #[test]
    fn a_gpu_that_is_not_there_is_an_error_that_lists_the_others() {
        let error = testing::stand_in().find_gpu(&GpuName::Ordinal(9)).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("no GPU 9: there are 0 = 0000:1b:00.0, 1 = 0000:43:00.0, "), "{text}");
    }

    #[test]
    fn texts_that_name_no_gpu_are_refused() {
        for text in ["", "GPU-12", "GPU-", "first", "1b.0", "0:0:0:0.0", "x:1b:00.0", "0000:1b:00.g"] {
            let error = text.parse::<GpuName>().unwrap_err().to_string();
            assert!(error.contains("PCI address"), "{error}");
        }
    }
}
