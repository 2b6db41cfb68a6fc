import base from '../../jest.config.js';

/** `npm run test:cluster`: what needs a Redis Cluster or Sentinel, of real processes. */
export default {
  ...base,
  rootDir: '../..',
  roots: ['<rootDir>/test/cluster'],
  testPathIgnorePatterns: ['/node_modules/'],
  testTimeout: 60_000,
  maxWorkers: 1,
};
