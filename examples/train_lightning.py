"""Train a Lightning module on two GPUs if available, else on one GPU, else on two CPUs."""

import lightning
import ray.train
import torch
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from tune_policies import CpuPolicy, GpuPolicy
from tune_policies.trainers import build_torch_trainer

POLICY = GpuPolicy(num_workers=2) | GpuPolicy(num_workers=1) | CpuPolicy(num_workers=2)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layers(images / 16), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def train_on_worker():
    images, labels = map(torch.as_tensor, load_digits(return_X_y=True))
    trainer = lightning.Trainer(
        max_epochs=2,
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    data = DataLoader(TensorDataset(images.float(), labels), batch_size=32, shuffle=True)
    prepare_trainer(trainer).fit(Classifier(), data)


def main(storage_path=None):
    run_config = ray.train.RunConfig(storage_path=storage_path)
    return build_torch_trainer(train_on_worker, plan=POLICY, run_config=run_config).fit()


if __name__ == "__main__":
    print(f"training loss: {main().metrics['loss']:.3f}")
